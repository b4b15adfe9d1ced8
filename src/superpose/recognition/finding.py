"""Finding the task of rows: `recognise`, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Any

from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed, rows_of, several
from superpose.quiet import evaluating, quiet_run
from superpose.recognition.evidence import Evidence, names_of
from superpose.recognition.inputs import Inputs, keeping
from superpose.recognition.outputs import Outputs

EVIDENCE: dict[str, Callable[[], Evidence]] = {
    "inputs": Inputs,
    "outputs": Outputs,
    "entropy": lambda: Outputs("entropy"),
}
FARTHEST = 3.0  # deviations from what is usual: about one in a hundred rows of a task is farther
FARTHEST_TOGETHER = 1.0  # of the mean of many rows, which a little change of all of them moves


@dataclass(frozen=True)
class Found:
    """The task of each row, and how sure that is.

    `scores` (rows, tasks) has a column for each of `tasks`, the larger the likelier; `margin`
    (rows,) is how much the best is above the second. `surprise` (rows,) tells by how many
    deviations a row is farther from what its task usually sees than the task's own rows are, and
    `known` (rows,) is whether that is within the usual. They are None where evidence cannot tell.
    If rows were recognised together, `task` is one for all, and the others lack the rows.
    """

    task: Any
    tasks: list[Name]
    scores: Tensor
    margin: Tensor
    evidence: str
    surprise: Tensor | None = None

    @property
    def known(self) -> Tensor | None:
        """Whether each row belongs to one of the tasks."""
        return None if self.surprise is None else self.surprise <= self.limit

    limit: float = FARTHEST


def recognise(
    model: Superposed,
    inputs: tuple[Any, ...],
    options: dict[str, Any],
    *,
    among: Iterable[Name] | None = None,
    together: bool = False,
    evidence: str | Evidence | None = None,
) -> Found:
    """Find the task of each row: `model.recognise` calls this, and tells the options."""
    names = names_of(model)
    numbers = list(names)
    if among is not None:
        some: tuple[Name, ...] = several("among", among)
        numbers = list(dict.fromkeys(model.superposition.number(one) for one in some))
    if len(numbers) < 2:
        raise SuperposeError(
            f"there is nothing to choose from: recognise needs two tasks or "
            f"more, and there are {len(numbers)}"
        )
    chosen = _evidence(model, evidence)
    batch = rows_of(model, inputs, options)
    with evaluating(model), quiet_run():
        judged = chosen.judge(model, batch, numbers)
    scores, surprise, limit = judged.scores, judged.surprise, FARTHEST
    if scores.isnan().any():
        raise SuperposeError(
            "the scores of some rows are no numbers: look for numbers that are not finite in what "
            "was given, and in what the tasks have seen"
        )
    if together:
        scores = scores.sum(0, keepdim=True)
        surprise = None if surprise is None else surprise.mean(0, keepdim=True)
        limit = max(FARTHEST / sqrt(batch.rows), FARTHEST_TOGETHER)
    best = scores.topk(2, 1)
    margin = best.values[:, 0] - best.values[:, 1]
    own = best.indices[:, :1]
    farther = None if surprise is None else surprise.gather(1, own)[:, 0]
    tasks = [names[number] for number in numbers]
    found: Any = [tasks[place] for place in own[:, 0].tolist()]
    if together:
        found, scores, margin = found[0], scores[0], margin[0]
        farther = None if farther is None else farther[0]
    told = evidence if isinstance(evidence, str) else type(chosen).__name__.lower()
    return Found(found, tasks, scores, margin, told, farther, limit)


def _evidence(model: Superposed, wanted: str | Evidence | None) -> Evidence:
    """The evidence asked for; by default of inputs if something is kept of them."""
    if isinstance(wanted, Evidence):
        return wanted
    if wanted is None:
        return Outputs() if keeping(model) is None else Inputs()
    if not isinstance(wanted, str) or wanted not in EVIDENCE:
        raise SuperposeError(
            f"evidence={wanted!r}: use one of {', '.join(EVIDENCE)}, or an object of your own class"
        )
    return EVIDENCE[wanted]()
