"""A figure or table as one specification: what it needs run, its table, its claims, its picture."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from superpose_lab.experiments.labels import Wanted
from superpose_lab.experiments.recognition.protocol import RecognitionProtocol
from superpose_lab.experiments.recognition.protocols import SCALES
from superpose_lab.experiments.settings import EXPERIMENTS
from superpose_lab.figures import Scale, recognised
from superpose_lab.figures.claims import Claim
from superpose_lab.figures.learned import KEPT, TURNING, late, learned_table
from superpose_lab.figures.table import Column, Row, Table
from superpose_lab.results import Results

COMPUTED = "computed"
"""The results of figures that need no training."""
DATA = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar100": "CIFAR-10, then CIFAR-100",
    "digits": "digits",
}


@dataclass(frozen=True)
class Figure(ABC):
    """A figure or table; `source` is its place in the paper."""

    source: str
    title: str
    draw: Callable[[Table], Any]

    def wanted(self, scale: Scale) -> list[Wanted]:
        """The runs of experiments that it is drawn from, the cheapest first."""
        return []

    def protocols(self, scale: Scale) -> Mapping[str, RecognitionProtocol]:
        """The protocols of recognition whose measures it shows, by name."""
        return {}

    def table(self, name: str, scale: Scale, results: Results) -> Table:
        """Its numbers, from the results."""
        table = self._table(name, scale, results)
        table.heading = f"{self.title}. Scale {scale}: {table.about}."
        return table

    @abstractmethod
    def _table(self, name: str, scale: Scale, results: Results) -> Table: ...


@dataclass(frozen=True)
class Computed(Figure):
    """A figure that needs no training; its table is a line of the results."""

    compute: Callable[[Scale, Path | None], Table]

    def _table(self, name: str, scale: Scale, results: Results) -> Table:
        line = results.one(COMPUTED, name)
        if line is None:
            return Table([], [], about="not computed yet", missing=[name])
        return Table(
            [Column(*column) for column in line["columns"]],
            line["rows"],
            [Claim(**claim) for claim in line["claims"]],
            line["about"],
            details=line.get("details", []),
        )


def computed_line(name: str, command: str, table: Table) -> dict[str, Any]:
    """The line of a computed table."""
    line: dict[str, Any] = {"name": name, "seed": 0, "command": command, "about": table.about}
    line["columns"] = [list(column) for column in table.columns]
    line |= {"rows": table.rows, "claims": [asdict(claim) for claim in table.claims]}
    return line | ({"details": table.details} if table.details else {})


@dataclass(frozen=True)
class Learned(Figure):
    """A figure drawn from runs: `keys` are the columns of its table, the rest are its axes."""

    runs: Callable[[Scale], Iterator[Wanted]]
    keys: tuple[str, ...] = KEPT
    claims: Callable[[Sequence[Row]], list[Claim]] = lambda rows: []
    ylabel: str = "accuracy on the first task, %"
    labels: tuple[tuple[str, str], ...] = ()
    close_up: bool = False

    def wanted(self, scale: Scale) -> list[Wanted]:
        return list(self.runs(scale))

    def _table(self, name: str, scale: Scale, results: Results) -> Table:
        wanted = self.wanted(scale)
        table = learned_table(wanted, results, self.keys)
        given = [EXPERIMENTS[w.settings.experiment].complete(w.settings) for w in wanted]
        first = given[0]
        tens = first.tasks > 10 and all(each.steps == first.steps for each in given)
        table.about = about(wanted)
        table.claims = self.claims(table.rows)
        have = {w.name: results.of(w.settings) for w in wanted}
        table.missing = [
            f"{settings.experiment}/{w.name}/seed-{settings.seed}"
            for w in wanted
            for settings in w.each()
            if settings.seed not in have[w.name]
        ]
        table.picture |= {
            "ylabel": self.ylabel,
            "labels": dict(self.labels),
            "close_up": self.close_up,
            "ten_tasks": 10 * first.steps if tens else None,
            "turns": (first.steps - late(first)) / first.period if self.keys == TURNING else None,
        }
        return table


@dataclass(frozen=True)
class Recognised(Figure):
    """A figure of measures of recognition."""

    names: tuple[str, ...]
    summarise: Callable[[Sequence[recognised.Part]], Table]

    def protocols(self, scale: Scale) -> Mapping[str, RecognitionProtocol]:
        return {name: SCALES[scale][name] for name in self.names if name in SCALES[scale]}

    def _table(self, name: str, scale: Scale, results: Results) -> Table:
        parts = [
            recognised.Part(name, protocol, recognised.measures_of(results, name, protocol))
            for name, protocol in self.protocols(scale).items()
        ]
        table = self.summarise(parts)
        table.about = "; ".join(f"{part.name}: {part.words}" for part in parts)
        table.missing = [f"recognition/{part.name}" for part in parts if part.measures is None]
        return table


def about(wanted: Sequence[Wanted]) -> str:
    """The settings in words.

    >>> from superpose_lab.experiments.settings import Settings
    >>> about([Wanted(Settings(experiment="rotating-mnist"))])  # doctest: +ELLIPSIS
    'MNIST; 50,000 steps; 256 units in each of 2 hidden layers; batches of 128; rmsprop with ...'
    """
    full = [EXPERIMENTS[each.settings.experiment].complete(each.settings) for each in wanted]
    lengths = dict.fromkeys(
        f"{s.tasks} tasks of {s.steps:,} steps" if s.tasks > 1 else f"{s.steps:,} steps"
        for s in full
    )
    first = full[0]
    icifar = first.experiment == "icifar"
    sizes = list(dict.fromkeys(str(s.width if icifar else s.units) for s in full))
    if icifar and len(lengths) > 1:
        lengths = dict.fromkeys(
            f"{s.tasks} tasks of {s.steps:,} steps at width {s.width}" for s in full
        )
        shape = f"ResNet-18; {_and(lengths)}"
    elif icifar:
        shape = f"{next(iter(lengths))}; ResNet-18 of width {_and(sizes)}"
    else:
        units = f"{_and(sizes)} units in each of {first.hidden} hidden layers"
        shape = f"{_and(lengths)}; {units}"
    rate = f"{first.optimiser} with learning rate {first.lr:g}"
    for group, given in zip(wanted, full, strict=True):
        if not group.label and (given.lr, given.schedule) != (first.lr, first.schedule):
            rate += f" ({given.method}: {given.lr:g}, {given.schedule} schedule)"
    if any(group.label for group in wanted):
        rate += " unless the table says otherwise"
    return f"{DATA[first.dataset]}; {shape}; batches of {first.batch_size}; {rate}"


def _and(words: Iterable[str]) -> str:
    """A list in words.

    >>> _and(["128", "256", "512"])
    '128, 256 and 512'
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
