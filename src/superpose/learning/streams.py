"""What the loop needs of a stream, and a stream made of a user's own tensors."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from superpose.errors import SuperposeError, at_least_one
from superpose.learning.shuffle import ORDER, shuffle


class Batch(NamedTuple):
    """Inputs (B, *input_shape) `float32`, labels (B,) `int64`, and whose they are."""

    x: Tensor
    y: Tensor
    task: int
    context: int


class Periodic(ABC):
    """Tasks one after another, `period` steps each, in a context each."""

    period: int

    @property
    @abstractmethod
    def tasks(self) -> int:
        """How many tasks there are."""

    @property
    def contexts(self) -> int:
        """As many as tasks."""
        return self.tasks

    def __len__(self) -> int:
        return self.period * self.tasks

    def task_at(self, step: int) -> int:
        """Count the periods before the step."""
        return step // self.period

    def context_at(self, step: int) -> int:
        """The same as the task."""
        return self.task_at(step)


class Stream(Protocol):
    """The least that `train` needs of a sequence of batches whose distribution changes over time.

    A batch must be a pure function of the step, or a resumed run cannot end as one never stopped.
    The test set of task k is read in context k.
    """

    @property
    def tasks(self) -> int:
        """How many test sets there are."""

    @property
    def contexts(self) -> int:
        """How many contexts the steps use."""

    def __len__(self) -> int:
        """How many steps there are."""

    def task_at(self, step: int) -> int:
        """The task of a step."""

    def batch(self, step: int) -> tuple[Tensor, Tensor, int, int]:
        """Inputs, labels, task and context of a step."""

    def test(self, task: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a task's test set."""


def described(stream: Stream) -> dict[str, Any]:
    """What a stream says of itself, or, if it says nothing, what can be seen of it."""
    if hasattr(stream, "describe"):
        told: dict[str, Any] = stream.describe()
        return told
    seen = {"steps": len(stream), "tasks": stream.tasks, "contexts": stream.contexts}
    return {"stream": type(stream).__name__, **seen}


class Segment(NamedTuple):
    """Steps start … stop − 1, all of one task."""

    task: int
    start: int
    stop: int


def segments(stream: Stream) -> list[Segment]:
    """Cut a stream where its task changes.

    >>> import torch
    >>> x, y = torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64)
    >>> segments(TensorStream([(x, y, x, y)] * 2, period=5, batch_size=4))
    [Segment(task=0, start=0, stop=5), Segment(task=1, start=5, stop=10)]
    """
    tasks = [stream.task_at(step) for step in range(len(stream))]
    starts = [step for step, task in enumerate(tasks) if step == 0 or task != tasks[step - 1]]
    return [
        Segment(tasks[start], start, stop)
        for start, stop in zip(starts, [*starts[1:], len(tasks)], strict=True)
    ]


@dataclass(frozen=True, eq=False)
class TensorStream(Periodic):
    """One task after the other, `period` steps each, from (x, y, test_x, test_y) of every task.

    Each task's rows are dealt in a new order every epoch; rows that do not fill the epoch's last
    batch are left out of it.

    >>> import torch
    >>> x, y = torch.randn(20, 3), torch.arange(20) % 2
    >>> stream = TensorStream([(x, y, x, y), (-x, y, -x, y)], period=50, batch_size=8)
    >>> len(stream), stream.batch(70).task, stream.batch(70).x.shape
    (100, 1, torch.Size([8, 3]))
    """

    data: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]] = field(repr=False)
    period: int = 1000
    batch_size: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.data:
            raise SuperposeError("data is empty: give (x, y, test_x, test_y) for each task")
        at_least_one(period=self.period, batch_size=self.batch_size)
        for task, each in enumerate(self.data):
            x, y, test_x, test_y = each
            if len(x) != len(y) or len(test_x) != len(test_y):
                raise SuperposeError(f"task {task} does not have one label for each row")
            if not len(test_y):
                raise SuperposeError(f"task {task} has no rows to be tested on")
            if len(x) < self.batch_size:
                raise SuperposeError(
                    f"batch_size {self.batch_size} is more than the {len(x)} rows of task {task}: "
                    "choose a smaller one"
                )

    @property
    def tasks(self) -> int:
        """One for each entry of `data`."""
        return len(self.data)

    def batch(self, step: int) -> Batch:
        """Make the batch of a step."""
        task, within = divmod(step, self.period)
        x, y, *_ = self.data[task]
        epoch, place = divmod(within, len(y) // self.batch_size)
        order = shuffle(len(y), self.seed, ORDER, task, epoch)
        rows = order[place * self.batch_size : (place + 1) * self.batch_size].to(y.device)
        return Batch(x[rows], y[rows], task, task)

    def test(self, task: int) -> tuple[Tensor, Tensor]:
        """Give the test set of a task."""
        _, _, x, y = self.data[task]
        return x, y

    def describe(self) -> dict[str, Any]:
        """Tell what the batches depend on; of the tensors, their shapes and a digest."""
        shapes = [[list(tensor.shape) for tensor in each] for each in self.data]
        settings = {"period": self.period, "batch_size": self.batch_size, "seed": self.seed}
        digest = hashlib.sha256()
        for tensor in (tensor for each in self.data for tensor in each):
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        return {"stream": "tensors", **settings, "shapes": shapes, "sha256": digest.hexdigest()}
