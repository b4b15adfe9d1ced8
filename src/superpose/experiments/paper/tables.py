"""Numbers of a figure or table: what several seeds measured, and how it stands to the paper."""

from collections.abc import Sequence
from math import hypot
from statistics import fmean, stdev
from typing import Any, NamedTuple

Table = dict[str, Any]
"""The JSON of a name: columns, rows, checks, curves; `plan` tells the rest."""

Result = dict[str, Any]
Check = dict[str, str]

REPRODUCED, DIFFERS, UNDECIDED, NOT_RUN = "reproduced", "differs", "undecided", "not run yet"
HOLDS, FAILS = "holds", "fails"  # of what the paper does not have
EXTRA = {REPRODUCED: HOLDS, DIFFERS: FAILS}
POINT = 0.01  # a figure of the paper is met within one percentage point; "unchanged" is that too
ALONE = 0.1  # two single seeds that are closer than this tell nothing: tasks differ by as much
ALONE_ALL = 0.01  # the same for a mean of all tasks


class Measure(NamedTuple):
    """The mean over seeds, the standard deviation between them, and how many there are."""

    mean: float
    deviation: float | None
    n: int

    def __str__(self) -> str:
        """In percent."""
        if self.deviation is None:
            return f"{100 * self.mean:.2f}"
        return f"{100 * self.mean:.2f} ± {100 * self.deviation:.2f}"


def measure(values: Sequence[float]) -> Measure | None:
    """What several seeds measured; None if there is none.

    >>> print(measure([0.5, 0.6]), measure([0.5]), measure([]))
    55.00 ± 7.07 50.00 None
    """
    if not values:
        return None
    deviation = round(stdev(values), 6) if len(values) > 1 else None
    return Measure(round(fmean(values), 6), deviation, len(values))


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
        paper, verdict = "not in the paper", EXTRA.get(verdict, verdict)
    return {"claim": claim, "paper": paper, "ours": ours, "verdict": verdict}


def above(
    claim: str,
    high: Measure | None,
    low: Measure | None,
    extra: bool = False,
    alone: float = ALONE,
) -> Check:
    """Whether one mean is above the other; undecided if seeds differ by more than that.

    `alone` is how far apart two single seeds have to be.
    """
    if high is None or low is None:
        return check(claim, "yes", "–", NOT_RUN, extra)
    one_seed = high.deviation is None or low.deviation is None
    noise = alone if one_seed else hypot(high.deviation or 0, low.deviation or 0)
    verdict = REPRODUCED if high.mean > low.mean else DIFFERS
    if abs(high.mean - low.mean) < noise:
        verdict = UNDECIDED
    seeds = f"n = {high.n}" if high.n == low.n else f"n = {high.n}, {low.n}"
    return check(claim, "yes", f"{high} against {low} ({seeds})", verdict, extra)


def within(claim: str, paper: float, ours: Measure | None) -> Check:
    """Whether a mean is that of the paper, within a point."""
    if ours is None:
        return check(claim, f"{100 * paper:.1f}", "–", NOT_RUN)
    verdict = REPRODUCED if abs(ours.mean - paper) <= POINT else DIFFERS
    return check(claim, f"{100 * paper:.1f}", f"{ours} (n = {ours.n})", verdict)


def unchanged(claim: str, losses: Sequence[float]) -> Check:
    """Whether what was lost is at most a point."""
    lost = measure(losses)
    if lost is None:
        return check(claim, "yes", "–", NOT_RUN)
    verdict = REPRODUCED if lost.mean <= POINT else DIFFERS
    return check(claim, "yes", f"loses {lost} points (n = {lost.n})", verdict)
