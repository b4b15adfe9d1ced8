"""Outputs as evidence: a classifier is surer of an input in the context it was learned in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Batch, Superposed
from superpose.recognition.evidence import Evidence, Judged, listed, names_of

AT_ONCE = 1024  # rows of a pass


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
    task after another, or, if there are fewer rows than tasks, as mixed batches.
    """

    def __init__(self, measure: str = "log-sum-exp") -> None:
        if measure not in MEASURES:
            raise SuperposeError(f"measure={measure!r}: use one of {', '.join(MEASURES)}")
        self.measure = measure

    def judge(self, model: Superposed, batch: Batch, tasks: list[int]) -> Judged:
        """Run every row in each task."""
        _check_learned(model, tasks)
        known = names_of(model)
        names, rows = [known[number] for number in tasks], torch.arange(batch.rows)
        if len(names) <= batch.rows:
            each = [
                torch.cat([self._score(model, batch, some, name) for some in rows.split(AT_ONCE)])
                for name in names
            ]
            return Judged(torch.stack(each, 1))
        pairs = torch.cartesian_prod(rows, torch.arange(len(names))).split(AT_ONCE)
        scores = [
            self._score(model, batch, some[:, 0], [names[place] for place in some[:, 1].tolist()])
            for some in pairs
        ]
        return Judged(torch.cat(scores).view(batch.rows, -1))

    def _score(self, model: Superposed, batch: Batch, rows: Tensor, task: Any) -> Tensor:
        """How sure the outputs of some rows are, in one task, or in a task each."""
        inputs, options = batch.take(rows)
        return MEASURES[self.measure](_logits(model(*inputs, task=task, **options), len(rows)))


def _logits(outputs: Any, rows: int) -> Tensor:
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


def _check_learned(model: Superposed, numbers: list[int]) -> None:
    """Refuse tasks that have learned nothing, where that shows: their outputs say nothing."""
    shows = model.superposition.options.base or any(
        model.private_parameters(name) for name in model.tasks[:1]
    )
    waiting = sorted(set(numbers) - model.private_state.learned()) if shows else []
    if waiting:
        raise SuperposeError(
            f"{listed(model, waiting)} learned nothing yet, as far as private parameters show, so "
            "outputs say nothing: leave tasks out, as in model.recognise(x, among=[…])"
        )
