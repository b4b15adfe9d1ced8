"""Accuracy against bytes: superposed models, and separate ones, with weights in fewer bits.

    OMP_NUM_THREADS=1 python benchmarks/precision.py     # results/precision/precision.json

Three stores: permuted MNIST, 256 units, 20 tasks of 1000 steps learned one after the other
(hadamard contexts, centred by task); ten nets that learned such a task each, packed by `solve`;
iCIFAR with a ResNet-18 of width 16, three tasks of 300 steps. float32, bfloat16, float16 and int8
are files of `sp.save(…, dtype=…)` that were loaded again. 6 bits and fewer are rounded as int8 is,
symmetric with a scale for each output, or for each group of 16 inputs, and counted as if they were
packed tightly. Private tensors are in full where weights are whole numbers. torchao's rows are what
its kernels give, and bytes in memory. Separate nets, one a task, are rounded in the same way.
"""

import copy
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
import trained
import tyro
from torch import Tensor, nn

import superpose as sp
from superpose.learning import Quiet
from superpose_lab.data import ImageStream
from superpose_lab.experiments.jobs import Job, run
from superpose_lab.experiments.settings import EXPERIMENTS, Settings
from superpose_lab.networks import MLP

FILES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
BITS = (6, 5, 4, 3, 2)
GROUP = 16  # inputs that share a scale of 16 bits
LEARNED = {
    "MLP, 256 units": Settings(
        experiment="permuting-mnist", method="hadamard", private="per-task", centre="task",
        tasks=20, steps=1000, matrix="ends",
    ),
    "ResNet-18, width 16": Settings(
        experiment="icifar", method="hadamard", private="per-task", width=16,
        tasks=3, steps=300, matrix="ends",
    ),
}  # fmt: skip
PACKED, MODELS = "MLP, 256 units, packed", 10
SEPARATE = "MLP, 256 units, separate"
NAMES = ("MLP, 256 units", SEPARATE, PACKED, "ResNet-18, width 16")
TESTED = {"permuting-mnist": 5000, "icifar": 1000}  # images of a task


@dataclass
class Store:
    """Models in one, how to make the plain network, and the images that each task is tested on."""

    name: str
    model: sp.Superposed
    net: Callable[[], nn.Module]
    tests: list[tuple[Tensor, Tensor]]

    def mean(self, model: sp.Superposed) -> float:
        pairs = zip(model.tasks, self.tests, strict=True)
        return fmean(accuracy(model, test, task=task) for task, test in pairs)


@dataclass
class Precision:
    nets: Path = Path("runs/nets")
    """Where trained networks are kept."""
    runs: Path = Path("runs/precision")
    """Where runs are kept."""
    out: Path = Path("results/precision")
    """Where the results go."""

    @torch.no_grad()
    def run(self) -> None:
        torch.set_num_threads(1)
        path = self.out / "precision.json"
        rows = json.loads(path.read_text())["rows"] if path.exists() else []
        for name in NAMES:
            if any(row["net"] == name for row in rows):
                continue  # it was done before
            for row in self.rows(name):
                rows.append({"net": name} | row)
                print(json.dumps(rows[-1]), flush=True)
            self.out.mkdir(parents=True, exist_ok=True)
            found = {"command": "python benchmarks/precision.py", "torch": torch.__version__}
            path.write_text(json.dumps(found | {"rows": rows}, indent=1) + "\n")

    def rows(self, name: str) -> Iterator[dict[str, object]]:
        if name == SEPARATE:
            stream = trained.permuting(MODELS)
            with torch.enable_grad():
                made = partial(trained.permuted_mnist_net, stream, 256, directory=self.nets)
                nets = [made(k) for k in range(MODELS)]
            yield from separate(nets, tested(stream, TESTED["permuting-mnist"]))
            return
        with torch.enable_grad():
            store = self.packed() if name == PACKED else self.learned(name)
        yield from files(store)
        yield from fewer_bits(store)
        yield from by_torchao(store)

    def learned(self, name: str) -> Store:
        settings = LEARNED[name]
        done = run(Job(settings, self.runs / settings.experiment, name, {"resume": True}), Quiet())
        assert isinstance(done.model, sp.Superposed)
        experiment = EXPERIMENTS[settings.experiment]
        complete = experiment.complete(settings)
        stream = experiment.stream(complete)

        tests = tested(stream, TESTED[settings.experiment])
        net = partial(experiment.network, complete, stream)
        return Store(name, done.model.eval(), net, tests)

    def packed(self) -> Store:
        stream = trained.permuting(MODELS)
        names = list(map(str, range(MODELS)))
        nets = {
            k: partial(trained.permuted_mnist_net, stream, 256, int(k), self.nets) for k in names
        }
        inputs = {k: partial(trained.calibration, stream, int(k), 3000) for k in names}
        model = sp.pack(nets, "hadamard", method="solve", calibration=inputs).eval()
        tests = tested(stream, TESTED["permuting-mnist"])
        return Store(PACKED, model, partial(MLP, 784, 256, 10), tests)


def files(store: Store) -> Iterator[dict[str, object]]:
    """What a file gives back, by the type that it was saved in."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        for dtype in FILES:
            sp.save(store.model, path, dtype=dtype)
            again = sp.load(path, store.net()).eval()
            name = str(dtype).removeprefix("torch.")
            yield {"precision": name, "accuracy": store.mean(again), "bytes": path.stat().st_size}


def fewer_bits(store: Store) -> Iterator[dict[str, object]]:
    for bits, group in (*((bits, None) for bits in BITS), *((bits, GROUP) for bits in (4, 3, 2))):
        model = copy.deepcopy(store.model)
        saved = 0
        for weight in shared_weights(model):
            saved += weight.nbytes - narrow_(weight, bits, group)
        size = store.model.cost().stored_bytes - saved
        yield {
            "precision": f"{bits} bits", "group": group,
            "accuracy": store.mean(model), "bytes": size,
        }  # fmt: skip


def by_torchao(store: Store) -> Iterator[dict[str, object]]:
    """Linear layers alone, which are all that it takes: of a ResNet that is only the last one."""
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        quantize_,
    )

    if not store.name.startswith("MLP"):
        return
    for config in (Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()):
        model = copy.deepcopy(store.model)
        quantize_(model, config)
        size = model.cost().stored_bytes
        name = type(config).__name__
        yield {"precision": name, "accuracy": store.mean(model), "bytes": size}


def tested(stream: ImageStream, count: int) -> list[tuple[Tensor, Tensor]]:
    """Some images of each task, evenly spread: the first half of MNIST's test set is harder."""
    pairs = (stream.test(task) for task in range(stream.tasks))
    steps = ((x, y, max(1, len(y) // count)) for x, y in pairs)
    return [(x[::step].clone(), y[::step].clone()) for x, y, step in steps]


def accuracy(model: nn.Module, test: tuple[Tensor, Tensor], **task: object) -> float:
    """In percent."""
    found = [model(part, **task).argmax(-1) for part in test[0].split(500)]
    return 100 * float((torch.cat(found) == test[1]).double().mean())


def separate(
    nets: list[nn.Module], tests: list[tuple[Tensor, Tensor]]
) -> Iterator[dict[str, object]]:
    for bits in (32, 8, *BITS):
        size, found = 0, []
        for net, test in zip(nets, tests, strict=True):
            one = copy.deepcopy(net).eval()
            for weight in one.parameters():
                size += weight.nbytes if bits == 32 else narrow_(weight, bits, None)
            found.append(accuracy(one, test))
        name = {32: "float32", 8: "int8"}.get(bits, f"{bits} bits")
        yield {"precision": name, "accuracy": fmean(found), "bytes": size}


def shared_weights(model: nn.Module) -> list[Tensor]:
    """What a file in eight bits has in eight bits."""
    private = {id(p) for layer in model.modules() for p in private_of(layer)}
    return [p for p in model.parameters() if p.ndim > 1 and id(p) not in private]


def private_of(layer: nn.Module) -> list[nn.Parameter]:
    own = layer.private if isinstance(layer, sp.nn.Layer) else ()
    return [p for name, p in layer.named_parameters(recurse=False) if name in own]


def narrow_(weight: Tensor, bits: int, group: int | None) -> int:
    """Round a weight in place: q · s, q within ±(2ᵇ⁻¹ − 1); give the bytes that it would take."""
    rows = weight.flatten(1)
    whole = group is None or rows.shape[1] % group
    parts = rows.unsqueeze(1) if whole else rows.unflatten(1, (-1, group))
    largest = 2 ** (bits - 1) - 1
    scale = parts.abs().amax(-1, keepdim=True).clamp_min(1e-30) / largest
    if not whole:
        scale = scale.half().float().clamp_min(1e-7)
    weight.copy_(((parts / scale).round() * scale).view(weight.shape))
    return -(-rows.numel() * bits // 8) + scale.numel() * (4 if whole else 2)


if __name__ == "__main__":
    tyro.cli(Precision).run()
