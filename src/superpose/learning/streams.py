"""What the loop needs of a stream, and a stream made of a user's own tensors."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError, at_least_one
from superpose.learning.shuffle import ORDER, shuffle
from superpose.model import Name


class Batch(NamedTuple):
    """Inputs (B, *input_shape) `float32`, labels (B,) `int64`, and whose they are."""

    x: Tensor
    y: Tensor
    task: int
    context: int


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


def part_at(parts: Sequence[Segment], step: int) -> Segment:
    """The part that a step is in."""
    return parts[bisect_right(parts, step, key=lambda part: part.start) - 1]


Select = Literal["task", "context", "none"]
"""Which number of a batch a network is told: its task, its context, or none."""


class Told:
    """Whose each batch is, as the stream tells."""

    def __init__(self, stream: Stream, parts: Sequence[Segment], select: Select) -> None:
        self.stream, self.select = stream, select
        self._starts = {part.start for part in parts}
        self._before = {part.stop: part for part in parts}
        self.now: int | None = None  # what the network is told of the batch of this step
        self.begins = False  # whether a task begins with it

    def look(self, step: int, batch: tuple[Tensor, Tensor, int, int]) -> Past | None:
        """Take note of the batch of a step; give what ended before it, if something did."""
        self.now, self.begins = self._told(batch), step in self._starts
        part = self._before.get(step)
        if part is None:
            return None
        return Past(self.stream, part, self._told(self.stream.batch(step - 1)), self._told)

    def _told(self, batch: tuple[Tensor, Tensor, int, int]) -> int | None:
        _, _, task, context = batch
        return {"task": task, "context": context, "none": None}[self.select]


@dataclass(frozen=True)
class Past:
    """The batches of a part of a stream that ended, the latest first."""

    stream: Stream
    part: Segment
    task: Name | None
    told: Callable[[Any], Name | None]  # what the network is told of a batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, int, int]]:
        for step in reversed(range(self.part.start, self.part.stop)):
            yield self.stream.batch(step)

    def through(self, model: nn.Module) -> Callable[[Any], Tensor]:
        """Run a network on such batches."""
        return lambda batch: logits_of(model, batch[0], self.told(batch))


def logits_of(model: nn.Module, x: Tensor, task: Any = None) -> Tensor:
    """The logits (B, classes) of a network that is told this task, or none."""
    returned = model(x) if task is None else model(x, task=task)
    if not isinstance(returned, Tensor):
        raise SuperposeError(
            f"{type(model).__name__} returned a {type(returned).__name__}, and `train` needs "
            "logits, a tensor (rows, classes): wrap the network in a module whose forward returns "
            "them, such as self.net(x).logits, or write the loop yourself with a guard"
        )
    return returned


@dataclass(frozen=True, eq=False)
class TensorStream:
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

    @property
    def contexts(self) -> int:
        """As many as tasks."""
        return self.tasks

    def __len__(self) -> int:
        return self.period * self.tasks

    def task_at(self, step: int) -> int:
        """The task of a step."""
        return step // self.period

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
