"""What thousands of tasks cost with default options: to convert, save, load and train.

A task is *declared* when the model knows its name, and *learned* when its private tensors changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from timing import Amount, Comparison, Pair, seconds, training_step
from torch import Tensor, nn

import superpose as sp
from superpose_lab.networks import MLP, ResNet18

PRECISION = 3  # how often a row in seconds is timed


@dataclass(frozen=True, eq=False)
class ManyTasks:
    """Rows of `benchmarks/speed.py` about one network with many tasks; files go to `folder`."""

    net: str
    make: Callable[[], nn.Module]
    tasks: int
    x: Tensor
    folder: Path

    def comparisons(self, rounds: int) -> Iterator[Comparison]:
        """Ratios to the plain network's times."""
        plain, some = f"the plain {self.net}", max(rounds // 4, 3)
        declared, learned = self._named("declared"), self._named("learned")
        yield Comparison(f"saving, {declared}", plain, 2.0, some, self._saving)
        yield Comparison(f"loading, {declared}", plain, 2.0, some, self._loading)
        new, old = partial(self._step, self._superposed), partial(self._step, lambda: self.learned)
        yield Comparison(f"training step, {declared}", plain, 1.05, some, new)
        yield Comparison(f"training step, {learned}", plain, 1.10, some, old)

    def amounts(self) -> Iterator[Amount]:
        """Seconds and bytes."""
        plain = f"the plain {self.net}"
        declared, learned = self._named("declared"), self._named("learned")
        yield Amount(f"`superpose()`, {declared}", "–", "s", 0.5, self._seconds_to_convert)
        yield Amount(f"memory above, {declared}", plain, "MB", 10, self._megabytes_above)
        yield Amount(f"file above, for a task, {declared}", plain, "bytes", 32, self._bytes_of_name)
        yield Amount(f"saving, {learned}", "–", "s", 3, self._seconds_to_save)
        yield Amount(f"loading, {learned}", "–", "s", 3, self._seconds_to_load)
        yield Amount(f"file, {learned}", "bytes of its numbers", "", 1.01, self._file_to_numbers)

    def _named(self, state: str) -> str:
        return f"{self.net}, {self.tasks:,} tasks {state}"

    def _superposed(self) -> sp.Superposed:
        return sp.superpose(self.make(), tasks=self.tasks)

    @cached_property
    def declared(self) -> sp.Superposed:
        """No task has learned anything."""
        return self._superposed()

    @cached_property
    def learned(self) -> sp.Superposed:
        """Every task has changed all its parameters, and its norm statistics by one batch."""
        model, generator = self._superposed().train(), torch.Generator().manual_seed(0)
        statistics = list(self.make().buffers())
        with torch.no_grad():
            for task in range(self.tasks):
                if statistics:
                    model(self.x[:2].cpu(), task=task)
                for own in model.private_parameters(task):
                    own.add_(0.01 * torch.randn(own.shape, generator=generator))
        return model

    def _save(self, model: sp.Superposed) -> Path:
        path = self.folder / "many.safetensors"
        sp.save(model, path)
        return path

    def _save_plain(self, net: nn.Module) -> Path:
        path = self.folder / "plain.safetensors"
        save_file(net.state_dict(), path)
        return path

    def _saving(self) -> Pair:
        return partial(self._save, self.declared), partial(self._save_plain, self.make())

    def _loading(self) -> Pair:
        many, one = self._save(self.declared), self._save_plain(self.make())

        def load_plain() -> None:
            self.make().load_state_dict(load_file(one))

        return lambda: sp.load(many, self.make()), load_plain

    def _step(self, model: Callable[[], sp.Superposed]) -> Pair:
        y = torch.arange(len(self.x), device=self.x.device) % 10
        step = training_step(model(), self.x, y, task=self.tasks // 2)
        return step, training_step(self.make(), self.x, y)

    def _seconds_to_convert(self) -> list[float]:
        net = self.make()
        return seconds(lambda: sp.superpose(net, tasks=self.tasks), PRECISION)

    def _seconds_to_save(self) -> list[float]:
        return seconds(lambda: self._save(self.learned), PRECISION)

    def _seconds_to_load(self) -> list[float]:
        path = self._save(self.learned)
        return seconds(lambda: sp.load(path, self.make()), PRECISION)

    def _megabytes_above(self) -> list[float]:
        sp.contexts.cache.clear()
        self.declared.cpu().eval()(self.x[:1].cpu(), task=self.tasks - 1)
        above = held(self.declared) - held(self.make()) + sp.contexts.cache.bytes
        return [above / 1e6]

    def _bytes_of_name(self) -> list[float]:
        many, one = self._save(self.declared), self._save_plain(self.make())
        return [(many.stat().st_size - one.stat().st_size) / self.tasks]

    def _file_to_numbers(self) -> list[float]:
        return [self._save(self.learned).stat().st_size / self.numbers()]

    def numbers(self) -> int:
        """Bytes of what the learned model has to keep: the plain one's, and each task's own."""
        plain = self.make()
        statistics = sum(buffer.nbytes for buffer in plain.buffers())
        own = sum(p.nbytes for p in self.learned.private_parameters(0))
        kept = sum(tensor.nbytes for tensor in plain.state_dict().values())
        return kept + self.tasks * (own + statistics)


def held(model: nn.Module) -> int:
    """Bytes of memory behind a model's parameters and buffers, each storage once."""
    tensors = (*model.parameters(), *model.buffers())
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def networks(device: torch.device, folder: Path) -> list[ManyTasks]:
    """A ResNet-18 with 1,000 tasks, an MLP with 10,000."""
    generator = torch.Generator().manual_seed(0)
    images, rows = (
        torch.randn(size, generator=generator).to(device) for size in ((16, 3, 32, 32), (128, 784))
    )

    def mlp() -> nn.Module:
        return MLP(784, 256, 10, bias=True)  # each task has its own

    return [
        ManyTasks("ResNet-18 width 32", lambda: ResNet18(width=32), 1000, images, folder),
        ManyTasks("MLP 2×256 with biases", mlp, 10_000, rows, folder),
    ]
