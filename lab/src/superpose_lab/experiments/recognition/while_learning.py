"""Streams whose tasks are given to one network, and recognised by another while it learns."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from superpose.learning import method
from superpose_lab.experiments.recognition.after_learning import STREAMS, network
from superpose_lab.experiments.recognition.measures import stored
from superpose_lab.experiments.recognition.protocol import (
    Learner,
    Measures,
    RecognitionProtocol,
    percent,
)


@dataclass(frozen=True, kw_only=True)
class WhileLearning(RecognitionProtocol):
    """An MLP of two hidden layers learns batches without the names of their tasks."""

    stream: Literal["permuting", "returning", "rotating"] = "permuting"
    dataset: str = "mnist"
    length: dict[str, int]
    """Settings of the stream: tasks and period, or, if it rotates, steps and period."""
    units: int = 256
    method: str = "hadamard"
    options: dict[str, Any] = field(default_factory=lambda: {"private": "none"})
    """Options of `superpose`."""
    rate: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-4})
    """Options of `train`."""
    evaluate_every: int = 1000

    def runs(self, name: str) -> list[str]:
        return [f"{name}-{tasks}" for tasks in ("found", "told")]

    def measure(self, name: str, learner: Learner) -> Measures:
        """Learn both ways: the accuracies at the end, and the contexts that were begun."""
        results, models = {}, {}
        for run, known in zip(self.runs(name), (False, True), strict=True):
            stream = STREAMS[self.stream](learner.dataset(self.dataset), **self.length)
            outcome = learner.train(
                run,
                network(stream, self.units, self.options),
                stream,
                method(self.method, **self.options),
                **self.rate,
                evaluate_every=self.evaluate_every,
                tasks_known=known,
            )
            results[known], models[known] = outcome.result, outcome.model
        begun = dict(results[False]["found"])
        return {
            "tasks": stream.tasks,
            "steps": len(stream),
            "told": percent(results[True]["mean_all"], 1),
            "found": percent(results[False]["mean_all"], 1),
            "found_together": percent(fmean(begun.pop("together")), 1),
            **stored(models[False]),
            "found_over_time": results[False]["first"],
            "told_over_time": results[True]["first"],
            **begun,
        }

    def words(self) -> str:
        if self.stream == "rotating":
            what = f"images that turn slowly, {self.length['steps']:,} steps"
        else:
            back = " that come back" if self.stream == "returning" else ""
            what = f"{self.length['tasks']} permutations{back}, {self.length['period']} steps each"
        return f"{what}, 2 × {self.units} units, {self.method}"
