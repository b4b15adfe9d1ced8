"""What every protocol of recognition has: a declaration, its runs, and what is measured."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from superpose.lab.data import Dataset, load
from superpose.learning import Display, Outcome, train
from superpose.learning.methods import Method
from superpose.learning.streams import Stream
from superpose.recognition import Statistics

Found = dict[str, Any]
"""What was measured, as JSON can hold it; accuracies are in percent."""


@dataclass(frozen=True)
class Learner:
    """Trains networks into directories below `runs`; a run that was killed goes on."""

    runs: Path
    display: Display
    stop: Callable[[], bool] | None = None
    data_dir: Path | None = None

    def dataset(self, name: str) -> Dataset:
        """Load a data set."""
        return load(name, self.data_dir)

    def train(
        self, run: str, net: nn.Module, stream: Stream, method: Method, **given: Any
    ) -> Outcome:
        """Learn a stream in the directory of this name; a run that has ended is read."""
        return train(
            net,
            stream,
            method,
            **given,
            matrix="ends",
            out=self.runs / run,
            resume=True,
            save_every=60.0,
            label=run,
            display=self.display,
            stop=self.stop,
        )


@dataclass(frozen=True, kw_only=True)
class RecognitionProtocol(ABC):
    """A declaration: data, network, method, rate, and how many rows are recognised."""

    only_measured: ClassVar[tuple[str, ...]] = ()
    """Fields that do not decide what is learned."""

    @abstractmethod
    def runs(self, name: str) -> list[str]:
        """The directories of its runs."""

    @abstractmethod
    def measure(self, name: str, learner: Learner) -> Found:
        """Train what is not trained yet, and measure."""

    @abstractmethod
    def words(self) -> str:
        """Tell the settings."""

    def extras(self) -> str:
        """Tell options of `superpose` that are not the usual ones."""
        return ""

    def declared(self) -> Found:
        """All fields, as JSON has them: measures of other fields are not of this protocol."""
        given = asdict(self)
        kept = given.get("options", {}).get("recognise")
        if kept is not None:
            given["options"]["recognise"] = Statistics(**kept).described()
        found: Found = json.loads(json.dumps(given))
        return found

    def learned(self) -> Found:
        """The fields that decide what is learned."""
        given = self.declared().items()
        return {name: value for name, value in given if name not in self.only_measured}


def difference(was: Found, now: Found) -> str | None:
    """The first field in which two declarations differ, in words.

    >>> difference({"tasks": 10, "rows": 5}, {"tasks": 10, "rows": 6})
    'rows=5, not 6'
    """
    for field in {**now, **was}:
        if was.get(field) != now.get(field):
            return f"{field}={was.get(field)!r}, not {now.get(field)!r}"
    return None


def options_in_words(options: Mapping[str, Any]) -> str:
    """Options of `superpose` beside statistics of inputs and no private tensors.

    >>> options_in_words({"private": "none", "centre": "task", "recognise": Statistics(rank=8)})
    'centre task, statistics of rank 8'
    >>> options_in_words({"bind_frozen": True, "rank": 4})
    'weights as drawn, rank 4'
    """
    parts = []
    for name, value in options.items():
        if name == "bind_frozen":
            parts += ["weights as drawn"] if value else []
        elif isinstance(value, Statistics):
            parts += [f"statistics of rank {value.rank}"] if value.rank else []
        elif (name, value) != ("private", "none"):
            parts.append(name if value is True else f"{name} {value}")
    return ", ".join(parts)


def drawn(make: Callable[[], nn.Module]) -> nn.Module:
    """A network whose first weights are those of seed 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def percent(count: float, total: int) -> float:
    """A share in percent.

    >>> percent(1, 3)
    33.333333
    """
    return round(100 * count / total, 6)
