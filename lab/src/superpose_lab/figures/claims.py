"""Claims of the paper in three classes: numbers, orderings, and mathematics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from superpose_lab.figures.table import Measure

Kind = Literal["number", "ordering", "mathematics"]
Outcome = Literal["agrees", "differs", "undecided", "not run yet"]
POINT = 0.01  # numbers agree within one percentage point
ONE_SEED = 0.1  # two single seeds that are closer than this decide nothing


@dataclass(frozen=True)
class Claim:
    """One claim of the paper, and our measurement. `difference` is ours minus theirs, in points."""

    kind: Kind
    text: str
    theirs: str = ""
    ours: str = "–"
    difference: str = ""
    seeds: int = 0
    outcome: Outcome = "not run yet"


def number(text: str, theirs: float, ours: Measure | None) -> Claim:
    """A number that the paper gives."""
    paper = f"{100 * theirs:.1f}"
    if ours is None:
        return Claim("number", text, paper)
    return _compared(text, paper, str(ours), ours.mean - theirs, len(ours.seeds))


def nothing(text: str, theirs: str, ours: Measure | None) -> Claim:
    """A number that the paper says is virtually zero: a loss, or a difference."""
    if ours is None:
        return Claim("number", text, theirs)
    return _compared(text, theirs, str(ours), ours.mean, len(ours.seeds))


def _compared(text: str, theirs: str, ours: str, difference: float, seeds: int) -> Claim:
    outcome: Outcome = "agrees" if abs(difference) <= POINT else "differs"
    points = f"{100 * difference:+.2f}".replace("-", "−")
    return Claim("number", text, theirs, ours, points, seeds, outcome)


def above(text: str, high: Measure | None, low: Measure | None) -> Claim:
    """One mean is above the other, over the seeds that both have.

    Undecided if the means differ by less than the seeds do; with one seed, by less than `ONE_SEED`.
    """
    from superpose_lab.figures.table import measure

    if high is None or low is None:
        return Claim("ordering", text)
    common = high.seeds.keys() & low.seeds.keys()
    first, second = (measure({k: m.seeds[k] for k in sorted(common)}) for m in (high, low))
    if first is None or second is None:
        return Claim("ordering", text, ours="no common seed")
    apart = ONE_SEED
    if first.deviation is not None and second.deviation is not None:
        apart = hypot(first.deviation, second.deviation)
    outcome: Outcome = "agrees" if first.mean > second.mean else "differs"
    if abs(first.mean - second.mean) < apart:
        outcome = "undecided"
    ours = f"{first} against {second}"
    return Claim("ordering", text, ours=ours, seeds=len(common), outcome=outcome)


def rising(text: str, values: Sequence[Measure | None]) -> Claim:
    """Means that rise from one to the next."""
    known = [each for each in values if each is not None]
    if len(known) < len(values):
        return Claim("ordering", text)
    means = [each.mean for each in known]
    return Claim(
        "ordering",
        text,
        ours=", ".join(f"{100 * mean:.2f}" for mean in means),
        seeds=min(len(each.seeds) for each in known),
        outcome="agrees" if means == sorted(means) else "differs",
    )


def exact(text: str, holds: bool, ours: str, theirs: str = "") -> Claim:
    """A statement that needs no training."""
    return Claim("mathematics", text, theirs, ours, outcome="agrees" if holds else "differs")


def better(
    by_name: Mapping[str, Measure | None], pairs: Sequence[tuple[str, str]], where: str = ""
) -> list[Claim]:
    """Claims that the first method of each pair is above the second."""
    return [
        above(f"{where}{high} is above {low}", by_name.get(high), by_name.get(low))
        for high, low in pairs
    ]
