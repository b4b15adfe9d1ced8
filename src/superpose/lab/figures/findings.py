"""Numbers of a figure or table: what several seeds measured, and how it stands to the paper."""

from collections.abc import Mapping
from math import hypot
from statistics import fmean, stdev
from typing import Any, NamedTuple

Findings = dict[str, Any]
"""The JSON of a name: columns, rows, checks, curves; `items` tells the rest."""

Result = dict[str, Any]
Row = dict[str, Any]
Check = dict[str, str]

REPRODUCED, DIFFERS, UNDECIDED, NOT_RUN = "reproduced", "differs", "undecided", "not run yet"
HOLDS, FAILS = "holds", "fails"  # of what the paper does not have
BETTER, WORSE = "better", "worse"  # of what was tried beside the paper's method
EXTRA = {REPRODUCED: HOLDS, DIFFERS: FAILS}
TRIED = {HOLDS: BETTER, FAILS: WORSE}
BEYOND = "not in the paper"
POINT = 0.01  # a figure of the paper is met within one percentage point; "unchanged" is that too
ALONE = 0.1  # two single seeds that are closer than this tell nothing: tasks differ by as much
ALONE_ALL = 0.01  # the same for a mean of all tasks


class Measure(NamedTuple):
    """What each seed measured, their mean and the standard deviation between them."""

    mean: float
    deviation: float | None
    seeds: dict[str, float]  # by the number of the seed, as JSON spells it

    @property
    def n(self) -> int:
        """How many seeds there are."""
        return len(self.seeds)

    def __str__(self) -> str:
        """In percent."""
        if self.deviation is None:
            return f"{100 * self.mean:.2f}"
        return f"{100 * self.mean:.2f} ± {100 * self.deviation:.2f}"


def measure(values: Mapping[Any, float]) -> Measure | None:
    """What several seeds measured; None if there is none.

    >>> print(measure({0: 0.5, 1: 0.6}), measure({3: 0.5}), measure({}))
    55.00 ± 7.07 50.00 None
    """
    if not values:
        return None
    deviation = round(stdev(values.values()), 6) if len(values) > 1 else None
    seeds = {str(seed): round(value, 6) for seed, value in values.items()}
    return Measure(round(fmean(values.values()), 6), deviation, seeds)


def as_json(found: Measure | None) -> dict[str, Any] | None:
    """For a row of a table."""
    return None if found is None else found._asdict()


def column(key: str, title: str, kind: str = "text") -> dict[str, str]:
    """A column: `share` is a measure, shown in percent; `number` and `text` are what they are."""
    return {"key": key, "title": title, "kind": kind}


def curve(results: dict[int, Result]) -> dict[str, Any]:
    """Accuracy on the first task over steps: mean and deviation over seeds."""
    runs = [result["first"] for result in results.values()]
    points = [[pair[1] for pair in at] for at in zip(*runs, strict=True)]
    several = len(runs) > 1
    return {
        "seeds": list(results),
        "steps": [pair[0] for pair in runs[0]],
        "mean": [round(fmean(values), 6) for values in points],
        "deviation": [round(stdev(values), 6) for values in points] if several else None,
    }


def check(claim: str, paper: str, ours: str, verdict: str, extra: bool = False) -> Check:
    """One thing the paper says, or one like it that is not in the paper, and what was found."""
    if extra:
        paper, verdict = BEYOND, EXTRA.get(verdict, verdict)
    return {"claim": claim, "paper": paper, "ours": ours, "verdict": verdict}


def above(
    claim: str,
    high: Measure | None,
    low: Measure | None,
    extra: bool = False,
    alone: float = ALONE,
) -> Check:
    """Whether one mean is above the other, over the seeds that both have.

    Undecided if seeds differ by more than that; `alone` is how far apart two single seeds have to
    be.
    """
    if high is None or low is None:
        return check(claim, "yes", "–", NOT_RUN, extra)
    common = high.seeds.keys() & low.seeds.keys()
    high, low = (measure({k: v for k, v in m.seeds.items() if k in common}) for m in (high, low))
    if high is None or low is None:
        return check(claim, "yes", "no seed that both have", NOT_RUN, extra)
    apart = alone
    if high.deviation is not None and low.deviation is not None:
        apart = hypot(high.deviation, low.deviation)
    verdict = REPRODUCED if high.mean > low.mean else DIFFERS
    if abs(high.mean - low.mean) < apart:
        verdict = UNDECIDED
    return check(claim, "yes", f"{high} against {low} (n = {high.n})", verdict, extra)


def tried(what: str, found: Measure | None, paper: Measure | None) -> Check:
    """Whether something is better than the paper's method, by the mean of all tasks."""
    compared = above(what, found, paper, extra=True, alone=ALONE_ALL)
    return compared | {"verdict": TRIED.get(compared["verdict"], compared["verdict"])}


def within(claim: str, paper: float, ours: Measure | None) -> Check:
    """Whether a mean is that of the paper, within a point."""
    if ours is None:
        return check(claim, f"{100 * paper:.1f}", "–", NOT_RUN)
    verdict = REPRODUCED if abs(ours.mean - paper) <= POINT else DIFFERS
    return check(claim, f"{100 * paper:.1f}", f"{ours} (n = {ours.n})", verdict)


def unchanged(claim: str, losses: Mapping[int, float]) -> Check:
    """Whether what was lost is at most a point."""
    lost = measure(losses)
    if lost is None:
        return check(claim, "yes", "–", NOT_RUN)
    verdict = REPRODUCED if lost.mean <= POINT else DIFFERS
    return check(claim, "yes", f"loses {lost} points (n = {lost.n})", verdict)
