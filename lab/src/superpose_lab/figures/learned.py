"""Tables of what was learned and kept, from runs of the experiments, and their claims."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from superpose_lab.experiments.labels import Wanted
from superpose_lab.experiments.settings import EXPERIMENTS, Complete
from superpose_lab.figures.claims import Claim, above, better, nothing, number, rising
from superpose_lab.figures.table import Column, Measure, Result, Row, Table, curve, measure
from superpose_lab.results import Results

AVERAGE = {
    "ewc": 0.970,
    "si": 0.972,
    "standard": 0.618,
    "binary": 0.976,
    "complex": 0.974,
    "onepower": 0.972,
}
"""The paper's table: mean of the last ten of fifty tasks."""
SUPERPOSED = ("binary", "complex", "onepower", "rotation")
TURNS = 10  # at the end of a rotating stream, over which accuracies are averaged

KEPT = ("method", "size", "seeds", "learned", "first_task", "mean_last_ten", "mean_all")
AVERAGES = ("method", "size", "seeds", "paper", "mean_last_ten", "mean_all")
ICIFAR = ("method", "size", "seeds", "learned", "first_task", "when_learned", "mean_all")
TURNING = ("method", "seeds", "mean", "lowest", "swing", "at_the_end")
CHANGES = ("label", "rate", "size", "tasks", "seeds", "when_learned", "first_task", "mean_all")
NUMBERS = (*CHANGES[:5], "numbers", *CHANGES[5:])
RELEASED = ("label", "rate", "size", "seeds", *KEPT[3:])
FORGOTTEN = (*CHANGES, "forgetting")
RATES = ("method", "rate", "seeds", "when_learned", "first_task", "mean_all")
TURNING_RATES = ("method", "rate", *TURNING[1:])
TITLES = {
    "method": "method",
    "label": "variant",
    "rate": "learning rate",
    "tasks": "tasks",
    "seeds": "seeds",
    "numbers": "numbers a task",
    "paper": "paper: mean of the last ten",
    "learned": "first task, just learned",
    "when_learned": "mean, each task just learned",
    "first_task": "first task, at the end",
    "mean_last_ten": "mean of the last ten",
    "mean_all": "mean of all",
    "forgetting": "forgetting",
    "mean": "mean of the last turns",
    "lowest": "lowest of the last turns",
    "swing": "highest minus lowest",
    "at_the_end": "at the end",
}
KINDS = dict.fromkeys(("size", "tasks", "seeds", "numbers"), "number")
KINDS |= dict.fromkeys(("method", "label", "rate"), "text") | {"paper": "percent"}


def learned_table(wanted: Sequence[Wanted], results: Results, keys: Sequence[str]) -> Table:
    """A row for each group of runs, and the curve of each that was run."""
    size = "width" if wanted[0].settings.experiment == "icifar" else "units"
    titles = TITLES | {"size": size}
    rows, curves = [], {}
    for group in wanted:
        by_seed = results.of(group.settings)
        rows.append(_row(group, by_seed))
        if by_seed:
            curves[group.name] = curve(by_seed)
    columns = [Column(key, titles[key], KINDS.get(key, "share")) for key in keys]
    return Table(columns, rows, picture={"curves": curves, "keys": keys})


def _row(group: Wanted, results: Mapping[int, Result]) -> Row:
    given = EXPERIMENTS[group.settings.experiment].complete(group.settings)
    row: Row = {
        "run": group.name,
        "method": given.method,
        "label": group.label,
        "size": given.width if given.experiment == "icifar" else given.units,
        "rate": f"{given.lr:g}, {given.schedule}",
        "lr": given.lr,
        "tasks": given.tasks,
        "steps": given.steps,
        "seeds": len(results),
        "numbers": None,
        "paper": AVERAGE.get(given.method),
    }
    for name in (*TITLES, "lost"):
        row.setdefault(name, None)
    if not results:
        return row
    row["numbers"] = next(iter(results.values()))["numbers"].get("private_per_task")
    values = {seed: _values(given, result) for seed, result in results.items()}
    for name in next(iter(values.values())):
        row[name] = measure({seed: each[name] for seed, each in values.items()})
    return row


def _values(given: Complete, result: Result) -> dict[str, float]:
    if given.experiment.startswith("rotating"):
        last = [value for step, value in result["first"] if step > late(given)]
        swing = max(last) - min(last)
        turns = {"mean": fmean(last), "lowest": min(last), "swing": swing}
        return turns | {"at_the_end": result["first_task"]}
    learned = next(value for step, value in result["first"] if step >= given.steps)
    values: dict[str, Any] = {"learned": learned, "lost": learned - result["first_task"]}
    names = ("first_task", "mean_last_ten", "mean_all", "forgetting")
    return values | {
        "when_learned": result["mean_when_learned"],
        **{name: result[name] for name in names},
    }


def late(given: Complete) -> int:
    """The step after which a rotating stream is averaged: the last ten turns, or half of it."""
    return max(given.steps - TURNS * given.period, given.steps // 2)


def by_method(rows: Sequence[Row], key: str) -> dict[str, Measure | None]:
    """A column by method."""
    return {row["method"]: row[key] for row in rows}


def size_claims(rows: Sequence[Row]) -> list[Claim]:
    """Figure 2: the first task, by the size of the network."""
    ends = {(row["method"], row["size"]): row["first_task"] for row in rows}
    sizes = sorted({row["size"] for row in rows})
    claims = [
        above(
            f"{units} units: binary keeps the first task better than standard",
            ends["binary", units],
            ends["standard", units],
        )
        for units in sizes
    ]
    text = "the larger the network, the better binary keeps the first task"
    claims.append(rising(text, [ends["binary", units] for units in sizes]))
    text = f"{sizes[-1]} units: points that binary loses on the first task"
    lost = next(r["lost"] for r in rows if (r["method"], r["size"]) == ("binary", sizes[-1]))
    return [*claims, nothing(text, "virtually unchanged", lost)]


def method_claims(rows: Sequence[Row]) -> list[Claim]:
    """Figure 3, left: the first task, by the form of superposition."""
    ends = by_method(rows, "first_task")
    pairs = [(name, "standard") for name in SUPERPOSED if name in ends]
    return better(ends, [*pairs, ("complex", "binary"), ("rotation", "complex")])


def large_claims(rows: Sequence[Row]) -> list[Claim]:
    """Supplementary Figure 3: in large networks the forms should hardly differ."""
    ends = by_method(rows, "first_task")
    forms = [ends.get(name) for name in SUPERPOSED[:3]]
    known = [form for form in forms if form is not None]
    apart = None
    if len(known) == len(forms):
        means = [form.mean for form in known]
        seeds = range(min(len(form.seeds) for form in known))
        apart = measure(dict.fromkeys(seeds, max(means) - min(means)))
    claims = better(ends, [(name, "standard") for name in SUPERPOSED[:3]])
    text = "points between binary, complex and onepower on the first task"
    return [*claims, nothing(text, "hardly any", apart)]


def average_claims(rows: Sequence[Row]) -> list[Claim]:
    """Figure 3, right: the mean of the last ten tasks."""
    full = max(row["size"] for row in rows)
    claims = []
    for row in rows:
        if row["paper"] is not None:
            text = f"{row['method']}: mean of the last ten tasks"
            if row["size"] < full:
                text += f" at {row['size']} units, the paper's at {full}"
            claims.append(number(text, row["paper"], row["mean_last_ten"]))
    return claims


def turning_claims(rows: Sequence[Row]) -> list[Claim]:
    """Figure 4 and Supplementary Figure 2: upright test images while training images turn."""
    means, swings = by_method(rows, "mean"), by_method(rows, "swing")
    claims = better(means, [(name, "standard") for name in SUPERPOSED if name in means])
    text = "standard swings more than binary with the turning of the images"
    return [*claims, above(text, swings["standard"], swings["binary"])]


def close_claims(rows: Sequence[Row]) -> list[Claim]:
    """Figure 5, left: the forms of superposition beside each other."""
    return better(by_method(rows, "mean"), [("complex", "binary"), ("rotation", "complex")])


def selection_claims(rows: Sequence[Row]) -> list[Claim]:
    """Figure 5, right: ten contexts a turn, or one for each step."""
    pairs = [("fast", "standard"), ("fast-localmix", "fast"), ("complex", "fast")]
    return better(by_method(rows, "mean"), pairs)


def icifar_claims(rows: Sequence[Row]) -> list[Claim]:
    """Figure 6: CIFAR-10 while classes of CIFAR-100 are learned, by the width of the network."""
    return [claim for width in _widths(rows) for claim in _of_width(rows, width)]


def _widths(rows: Sequence[Row]) -> Iterator[int]:
    return iter(dict.fromkeys(row["size"] for row in rows))


def _of_width(rows: Sequence[Row], width: int) -> Iterator[Claim]:
    these = [row for row in rows if row["size"] == width]
    pairs = [("multihead", "standard"), ("binary", "multihead")]
    yield from better(by_method(these, "first_task"), pairs, f"width {width}: ")
    text = f"width {width}: points that binary loses on CIFAR-10"
    yield nothing(text, "virtually unaffected", by_method(these, "lost")["binary"])
