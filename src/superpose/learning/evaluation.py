"""Accuracy of a model on the test sets of its tasks, and when it is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError, at_least_one
from superpose.learning.streams import Segment, Stream, logits_of
from superpose.quiet import evaluating

ROWS = 1000  # at once; a model that normalises by the batch is tested on batches of this size
MATRICES = ("auto", "full", "ends")
FULL_UP_TO = 20  # tasks: beyond, evaluating would take as long as learning


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, task: Any = None, rows: int = ROWS) -> float:
    """The share of rows that are classified right; `task` may be a function that finds it of x."""
    find: Callable[[Tensor], Any] = task if callable(task) else lambda part: task
    with evaluating(model):
        parts = zip(x.split(rows), y.split(rows), strict=True)
        right = sum(int((logits_of(model, a, find(a)).argmax(1) == b).sum()) for a, b in parts)
    return right / len(y)


class Timetable:
    """Which tasks are tested when.

    The first and the current one every `every` steps and when a task ends, all at the end;
    `matrix="full"` tests all tasks so far whenever one ends.
    """

    def __init__(self, stream: Stream, parts: Sequence[Segment], matrix: str, every: int) -> None:
        at_least_one(evaluate_every=every)
        if matrix not in MATRICES:
            raise SuperposeError(f"matrix={matrix!r}: use one of {', '.join(MATRICES)}")
        auto = "full" if stream.tasks <= FULL_UP_TO else "ends"
        self.matrix = auto if matrix == "auto" else matrix
        self._tasks, self._steps, self._parts, self._every = stream.tasks, len(stream), parts, every

    def due(self, part: Segment, done: int) -> list[int]:
        """The tasks to test when this many steps are done."""
        if done != part.stop and done % self._every:
            return []
        if done == self._steps:
            return list(range(self._tasks))
        if done == part.stop and self.matrix == "full":
            return sorted({before.task for before in self._parts if before.start < done})
        return sorted({self._parts[0].task, part.task})
