"""Outputs as evidence: a classifier is surer of an input in the context it was learned in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Superposed, private_state
from superpose.model.batch import Batch
from superpose.nn.flat import LEARNED
from superpose.recognition.evidence import Evidence, Judged
from superpose.recognition.inputs import names_of, told

AT_ONCE = 1024  # rows of a mixed batch


def log_sum_exp(logits: Tensor) -> Tensor:
    """log Σ exp of the logits: how much there is of any class."""
    return logits.logsumexp(-1)


def certainty(logits: Tensor) -> Tensor:
    """Minus the entropy of the classes, Σ p log p."""
    logs = logits.log_softmax(-1)
    return (logs.exp() * logs).sum(-1)


MEASURES: dict[str, Callable[[Tensor], Tensor]] = {
    "log-sum-exp": log_sum_exp,
    "entropy": certainty,
}


class Outputs(Evidence):
    """The outputs of a classifier under the context of each task.

    Nothing is stored for it, and it takes a forward pass for each row and task: all rows in one
    task after another, or, if rows are few or have tasks of their own, as mixed batches.
    """

    def __init__(self, measure: str = "log-sum-exp") -> None:
        if measure not in MEASURES:
            raise SuperposeError(f"measure={measure!r}: use one of {', '.join(MEASURES)}")
        self.measure = measure

    def judge(self, model: Superposed, batch: Batch, tasks: Tensor) -> Judged:
        """Run every row in each of its tasks."""
        _check_begun(model, tasks.unique().tolist())
        names, rows = names_of(model), torch.arange(batch.rows)
        if tasks.shape[1] <= batch.rows and bool((tasks == tasks[0]).all()):
            columns = [
                torch.cat(
                    [self._score(model, batch, some, names[n]) for some in rows.split(AT_ONCE)]
                )
                for n in tasks[0].tolist()
            ]
            return Judged(torch.stack(columns, 1))
        each = rows.repeat_interleave(tasks.shape[1])
        scores = [
            self._score(model, batch, some, [names[n] for n in theirs.tolist()])
            for some, theirs in zip(
                each.split(AT_ONCE), tasks.flatten().split(AT_ONCE), strict=True
            )
        ]
        return Judged(torch.cat(scores).view(tasks.shape))

    def _score(self, model: Superposed, batch: Batch, rows: Tensor, task: Any) -> Tensor:
        """How sure the outputs of some rows are, in one task, or in a task each."""
        inputs, options = batch.take(rows)
        return MEASURES[self.measure](logits(model(*inputs, task=task, **options), len(rows)))


def logits(outputs: Any, rows: int) -> Tensor:
    """The logits (rows, classes) of what a classifier returns."""
    found = getattr(outputs, "logits", outputs)
    if (
        not isinstance(found, Tensor)
        or found.ndim != 2
        or len(found) != rows
        or found.shape[1] < 2
        or not found.is_floating_point()
    ):
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise SuperposeError(
            f"there is nothing to recognise by: no statistics of inputs are used, and the outputs "
            f"({what}) are no logits (rows, classes); call model.remember(x, task=…) with some "
            "inputs of each task"
        )
    return found.float()


def _check_begun(model: Superposed, numbers: list[int]) -> None:
    """Outputs of a task that has learned nothing say nothing; where that can be seen, it is."""
    state = private_state(model)
    shows = state.mark is not None or any(g.kind in LEARNED for g in state.groups.values())
    if not shows or not model.starts_from_base:
        return
    waiting = [number for number in numbers if not state.has_begun(number)]
    if waiting:
        raise SuperposeError(
            f"{told(model, waiting)} learned nothing yet, as far as private tensors show, so "
            "outputs say nothing: leave tasks out, as in model.recognise(x, among=[…]), or call "
            "model.begin(task) if all that was learned is in the shared weights"
        )
