"""Streams of images. A batch is a pure function of the stream's settings and the step."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

from superpose import SuperposeError
from superpose.learning import Batch
from superpose_lab.data.datasets import Dataset
from superpose_lab.data.pool import Device, Pair, Pool


class Periodic(ABC):
    """Tasks one after another, `period` steps each, in a context each."""

    period: int

    @property
    @abstractmethod
    def tasks(self) -> int:
        """The number of tasks."""

    @property
    def contexts(self) -> int:
        """The number of contexts, one a task."""
        return self.tasks

    def __len__(self) -> int:
        return self.period * self.tasks

    def task_at(self, step: int) -> int:
        """The task of a step."""
        return step // self.period

    def context_at(self, step: int) -> int:
        """The context of a step."""
        return self.task_at(step)


@dataclass(frozen=True, eq=False)
class ImageStream(ABC):
    """A stream of labelled images: batches whose distribution changes over time.

    `batch(step)` needs no step before it, so a stream restarts anywhere, and a `DataLoader` with
    `batch_size=None` may deal the steps to any number of workers. The test set of task k is read
    in context k.

    Each epoch has its own order; the images that would not fill its last batch are left out of
    that epoch, so all batches have one size. Pixels stay `uint8` on `device` until they are drawn.
    """

    dataset: Dataset
    _: KW_ONLY
    batch_size: int = 128
    seed: int = 0
    device: Device = "cpu"
    _pools: tuple[Pool, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in self._settings().items():
            least = 0 if name == "seed" else 1
            if isinstance(value, int) and not least <= value < 2**63:
                raise SuperposeError(f"{name} must be at least {least}, not {value}")
        object.__setattr__(self, "_pools", self._fill())

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row of `Batch.x`."""

    @property
    def classes(self) -> int:
        """The number of labels: y < classes."""
        return self.dataset.classes

    @property
    @abstractmethod
    def tasks(self) -> int:
        """The number of test sets."""

    @property
    @abstractmethod
    def contexts(self) -> int:
        """The number of contexts that the steps use."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def task_at(self, step: int) -> int:
        """The task of a step."""

    @abstractmethod
    def context_at(self, step: int) -> int:
        """The context of a step."""

    @abstractmethod
    def _fill(self) -> tuple[Pool, ...]:
        """Check the settings and make the pools."""

    @abstractmethod
    def _train(self, step: int) -> Pair: ...

    @abstractmethod
    def _test(self, task: int) -> Pair: ...

    def batch(self, step: int) -> Batch:
        """Make the batch of a step."""
        if not 0 <= step < len(self):
            raise SuperposeError(f"step {step} is outside 0 … {len(self) - 1} of this stream")
        return Batch(*self._train(step), self.task_at(step), self.context_at(step))

    def test(self, task: int) -> Pair:
        """Make the whole test set of a task: inputs (N, *input_shape), normalised, and labels."""
        if not 0 <= task < self.tasks:
            raise SuperposeError(f"task {task} is outside 0 … {self.tasks - 1} of this stream")
        return self._test(task)

    __getitem__ = batch  # for `torch.utils.data.DataLoader`

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, range(len(self)))

    def describe(self) -> dict[str, Any]:
        """Everything that the batches depend on, as JSON can hold it."""
        described: dict[str, Any] = {"stream": type(self).__name__.lower()}
        for name, value in self._settings().items():
            known = isinstance(value, Dataset)
            described[name] = {"name": value.name, "digest": value.digest} if known else value
        return described

    def _pool(self, dataset: Dataset, classes: range | None = None, number: int = 0) -> Pool:
        chosen = classes or range(dataset.classes)
        options = {"batch_size": self.batch_size, "seed": self.seed, "number": number}
        return Pool(dataset, chosen, device=self.device, **options)

    def _settings(self) -> dict[str, Any]:
        names = (each.name for each in fields(self) if each.init and each.name != "device")
        return {name: getattr(self, name) for name in names}
