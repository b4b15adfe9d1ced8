"""Streams whose tasks are told to one network, and found by another while it learns."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from superpose.lab.data import STREAMS
from superpose.lab.experiments.recognition.after_learning import network
from superpose.lab.experiments.recognition.measures import stored
from superpose.lab.experiments.recognition.protocol import (
    Found,
    Learner,
    RecognitionProtocol,
    options_in_words,
    percent,
)
from superpose.learning import method


@dataclass(frozen=True, kw_only=True)
class WhileLearning(RecognitionProtocol):
    """An MLP of two hidden layers learns batches whose tasks nobody tells."""

    stream: Literal["permuting", "returning", "rotating"] = "permuting"
    dataset: str = "mnist"
    length: dict[str, int]
    """Settings of the stream: tasks and period, or, if it rotates, steps and period."""
    units: int = 256
    method: str = "hadamard"
    options: dict[str, Any] = field(default_factory=lambda: {"private": "none"})
    """Those of `superpose`."""
    rate: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-4})
    """Those of `train`."""
    evaluate_every: int = 1000

    def runs(self, name: str) -> list[str]:
        """One in which tasks are found, one in which they are told."""
        return [f"{name}-{tasks}" for tasks in ("found", "told")]

    def measure(self, name: str, learner: Learner) -> Found:
        """Learn both ways; accuracies at the end, and the contexts that were begun."""
        kind: Any = STREAMS[self.stream]
        results, models = {}, {}
        for tasks in ("found", "told"):
            stream = kind(learner.dataset(self.dataset), **self.length)
            outcome = learner.train(
                f"{name}-{tasks}",
                network(stream, self.units, self.options),
                stream,
                method(self.method, **self.options),
                **self.rate,
                evaluate_every=self.evaluate_every,
                tasks=tasks,
            )
            results[tasks], models[tasks] = outcome.result, outcome.model
        found = dict(results["found"]["found"])
        return {
            "tasks": stream.tasks,
            "steps": len(stream),
            "told": percent(results["told"]["mean_all"], 1),
            "found": percent(results["found"]["mean_all"], 1),
            "found_together": percent(fmean(found.pop("together")), 1),
            **stored(models["found"]),
            "found_over_time": results["found"]["first"],
            "told_over_time": results["told"]["first"],
            **found,
        }

    def extras(self) -> str:
        """Tell options of `superpose`."""
        return options_in_words(self.options)

    def words(self) -> str:
        """Stream, network, method."""
        if self.stream == "rotating":
            what = f"images that turn slowly, {self.length['steps']:,} steps"
        else:
            back = " that come back" if self.stream == "returning" else ""
            what = f"{self.length['tasks']} permutations{back}, {self.length['period']} steps each"
        return f"{what}, 2 × {self.units} units, {self.method}"
