"""The table of a figure: columns, rows, and measures over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, NamedTuple

from superpose_lab.figures.claims import Claim

Row = dict[str, Any]
Result = dict[str, Any]


class Measure(NamedTuple):
    """Mean and standard deviation over seeds, and the value of each seed."""

    mean: float
    deviation: float | None
    seeds: dict[int, float]

    def __str__(self) -> str:
        """In percent."""
        spread = "" if self.deviation is None else f" ± {100 * self.deviation:.2f}"
        return f"{100 * self.mean:.2f}{spread}"


def measure(values: Mapping[int, float]) -> Measure | None:
    """Mean and deviation of values by seed; None without seeds.

    >>> print(measure({0: 0.5, 1: 0.6}), measure({3: 0.5}), measure({}))
    55.00 ± 7.07 50.00 None
    """
    if not values:
        return None
    deviation = stdev(values.values()) if len(values) > 1 else None
    return Measure(fmean(values.values()), deviation, dict(values))


class Column(NamedTuple):
    """A column: `kind` says how its values are written, see `cell`."""

    key: str
    title: str
    kind: str = "text"


@dataclass
class Table:
    """Columns, rows and claims of a figure.

    `details` are measurements that are kept but too many for a page; `picture` is drawn beside
    the rows, and not kept.
    """

    columns: Sequence[Column]
    rows: list[Row]
    claims: list[Claim] = field(default_factory=list)
    about: str = ""
    heading: str = ""
    picture: dict[str, Any] = field(default_factory=dict)
    details: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        return grid([self])


def grid(tables: Sequence[Table], without: Sequence[str] = (), measured: bool = False) -> str:
    """Tables with the same columns as one; some columns left out, or rows that were not run."""
    columns = [column for column in tables[0].columns if column.key not in without]
    rows = [row for table in tables for row in table.rows if row.get("seeds", 1) or not measured]
    lines = [
        [column.title for column in columns],
        ["---" if column.kind == "text" else "---:" for column in columns],
        *([cell(row.get(column.key), column.kind) for column in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


FORMATS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "share": str,
    "number": lambda value: f"{value:,}",
    "percent": lambda value: f"{100 * value:.1f}",
    "points": lambda value: f"{value:.2f}",
    "area": lambda value: f"{value:.4f}",
    "float": lambda value: f"{value:.3g}",
}


def cell(value: Any, kind: str) -> str:
    """Write a value: `share` is a measure, `points` is in percent already.

    >>> cell(measure({0: 0.9424}), "share"), cell(12345, "number"), cell(None, "area")
    ('94.24', '12,345', '–')
    """
    return "–" if value is None else FORMATS[kind](value)


def curve(results: Mapping[int, Result]) -> dict[str, Any]:
    """Accuracy on the first task over steps: mean and deviation over seeds."""
    runs = [result["first"] for result in results.values()]
    points = [[pair[1] for pair in at] for at in zip(*runs, strict=True)]
    return {
        "steps": [pair[0] for pair in runs[0]],
        "mean": [fmean(values) for values in points],
        "deviation": [stdev(values) for values in points] if len(runs) > 1 else None,
    }
