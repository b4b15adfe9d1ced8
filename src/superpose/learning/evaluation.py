"""Accuracy of a model on the test sets of its tasks, and when it is measured."""

from collections.abc import Sequence

import torch
from torch import nn

from superpose.errors import SuperposeError, at_least_one
from superpose.learning.labelled import Labelled
from superpose.learning.streams import Segment, Stream

ROWS = 1000  # at once; a model that normalises by the batch is tested on batches of this size
MATRICES = ("auto", "full", "ends")
FULL_UP_TO = 20  # tasks: beyond, evaluating would take as long as learning


@torch.no_grad()
def accuracy(model: nn.Module, test: Labelled, rows: int = ROWS) -> float:
    """The share of rows of a test set that are told right."""
    was_training = model.training
    model.eval()
    parts = test.split(rows)
    right = sum(int((part.through(model).argmax(1) == part.y).sum()) for part in parts)
    model.train(was_training)
    return right / len(test)


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
