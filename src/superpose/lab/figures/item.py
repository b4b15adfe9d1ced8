"""A figure or table: which runs it needs at each scale, its numbers, its picture."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superpose.lab.experiments.recognition.protocol import RecognitionProtocol
from superpose.lab.experiments.recognition.protocols import SCALES
from superpose.lab.experiments.settings import EXPERIMENTS
from superpose.lab.figures import Scale
from superpose.lab.figures.findings import Findings
from superpose.lab.figures.measured import Measured
from superpose.lab.figures.recognition import Part
from superpose.lab.figures.runs import Finished, Wanted

DATA = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar100": "CIFAR-10, then CIFAR-100",
    "digits": "digits",
}


@dataclass(frozen=True)
class Item(ABC):
    """A figure or table."""

    source: str
    title: str
    draw: Callable[[Findings], Any]

    def wanted(self, scale: Scale) -> list[Wanted]:
        """The runs of experiments that it is drawn from."""
        return []

    def protocols(self, scale: Scale) -> Mapping[str, RecognitionProtocol]:
        """The protocols of recognition whose measures it shows, by name."""
        return {}

    def shows(self, found: Findings) -> bool:
        """Whether there is anything to draw."""
        return True

    @abstractmethod
    def table(self, scale: Scale, data: Finished, data_dir: Path | None) -> Findings:
        """Its numbers."""


@dataclass(frozen=True)
class Computed(Item):
    """One that needs no training."""

    compute: Callable[[Scale, Path | None], Findings]

    def table(self, scale: Scale, data: Finished, data_dir: Path | None) -> Findings:
        """Compute it."""
        return self.compute(scale, data_dir)


@dataclass(frozen=True)
class Learned(Item):
    """One that is drawn from runs."""

    runs: Callable[[Scale], Iterator[Wanted]]
    summarise: Callable[[list[Wanted], Finished], Findings]
    ylabel: str = "accuracy on the first task, %"
    labels: tuple[tuple[str, str], ...] = ()
    close_up: bool = False

    def wanted(self, scale: Scale) -> list[Wanted]:
        """The runs, the cheapest and most telling first."""
        return list(self.runs(scale))

    def shows(self, found: Findings) -> bool:
        """Whether a run has ended."""
        return bool(found["curves"])

    def table(self, scale: Scale, data: Finished, data_dir: Path | None) -> Findings:
        """Put the results of its runs together."""
        wanted = self.wanted(scale)
        full = [EXPERIMENTS[w.settings.experiment].complete(w.settings) for w in wanted]
        first = full[0]
        tens = first.tasks > 10 and all(each.steps == first.steps for each in full)
        return {
            "about": _about(wanted),
            "ylabel": self.ylabel,
            "labels": dict(self.labels),
            "close_up": self.close_up,
            "ten_tasks": 10 * first.steps if tens else None,
            **self.summarise(wanted, data),
        }


@dataclass(frozen=True)
class Recognised(Item):
    """One that shows measures of recognition."""

    names: tuple[str, ...]
    summarise: Callable[[Sequence[Part], Scale], Findings]

    def protocols(self, scale: Scale) -> Mapping[str, RecognitionProtocol]:
        """Those of its protocols that the scale has, the cheapest first."""
        return {name: SCALES[scale][name] for name in self.names if name in SCALES[scale]}

    def shows(self, found: Findings) -> bool:
        """Whether something was measured."""
        return any(row["seeds"] for row in found["rows"])

    def table(self, scale: Scale, data: Finished, data_dir: Path | None) -> Findings:
        """Put the measures of its protocols together."""
        measured = Measured(data.root)
        parts = [
            Part(
                name,
                protocol.words(),
                protocol.extras(),
                protocol.declared(),
                measured.of(name, protocol),
            )
            for name, protocol in self.protocols(scale).items()
        ]
        return self.summarise(parts, scale)


def _about(wanted: list[Wanted]) -> str:
    """The settings in words.

    >>> from superpose.lab.experiments.settings import Settings
    >>> _about([Wanted(Settings(experiment="rotating-mnist"))])  # doctest: +ELLIPSIS
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
