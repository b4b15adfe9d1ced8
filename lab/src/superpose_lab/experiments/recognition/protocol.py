"""A protocol of recognition: a declaration, its runs, and its measures."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from superpose.learning import Display, Method, Outcome, Stream
from superpose.recognition import Statistics
from superpose_lab.data import Dataset, load
from superpose_lab.experiments.training import learn

Measures = dict[str, Any]
"""Measures as JSON holds them; accuracies are in percent."""


@dataclass(frozen=True)
class Learner:
    """Trains networks into directories below `runs`; a killed run resumes."""

    runs: Path
    display: Display
    stop: Callable[[], bool] | None = None
    data_dir: Path | None = None

    def dataset(self, name: str) -> Dataset:
        return load(name, self.data_dir)

    def train(
        self, run: str, net: nn.Module, stream: Stream, method: Method, **options: Any
    ) -> Outcome:
        """Learn a stream in the directory of this name; a run that has ended is read."""
        return learn(
            net,
            stream,
            method,
            **options,
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
    def measure(self, name: str, learner: Learner) -> Measures:
        """Train what is not trained yet, and measure."""

    @abstractmethod
    def words(self) -> str:
        """The settings in words."""

    def declared(self) -> Measures:
        """All fields, as JSON has them; of statistics those that are set."""
        declared: Measures = json.loads(json.dumps(asdict(self)))
        return without_defaults(declared)

    def learned(self) -> Measures:
        """The fields that decide what is learned."""
        fields = self.declared().items()
        return {name: value for name, value in fields if name not in self.only_measured}

    def difference(self, recorded: Measures) -> str | None:
        """Compare with a recorded declaration: the first field that differs, in words.

        The kinds of evidence are not compared: a record may have more of them.
        """
        for name, value in self.declared().items():
            if name != "evidence" and recorded.get(name, value) != value:
                return f"{name}={recorded[name]!r}, not {value!r}"
        return None


def without_defaults(declared: Measures) -> Measures:
    """A declaration whose statistics have only the fields that are set."""
    kept = declared.get("options", {}).get("recognise")
    if kept is None:
        return declared
    options = declared["options"] | {"recognise": {name: v for name, v in kept.items() if v}}
    return declared | {"options": options}


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
    """Make a network whose first weights are those of seed 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def percent(count: float, total: int) -> float:
    """A share in percent.

    >>> percent(1, 3)
    33.333333
    """
    return round(100 * count / total, 6)
