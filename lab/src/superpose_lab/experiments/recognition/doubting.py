"""Tasks recognised by outputs alone, without and with training that teaches doubt."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from superpose.learning import method
from superpose_lab.data import Permuting
from superpose_lab.experiments.recognition.after_learning import network
from superpose_lab.experiments.recognition.measures import by_evidence, stored
from superpose_lab.experiments.recognition.protocol import (
    Learner,
    Measures,
    RecognitionProtocol,
    percent,
)


@dataclass(frozen=True, kw_only=True)
class Doubting(RecognitionProtocol):
    """An MLP of two hidden layers learns permuted tasks by several methods."""

    dataset: str = "mnist"
    tasks: int = 8
    steps: int = 400
    """For each task."""
    units: int = 256
    methods: tuple[str, ...] = ("hadamard+projection", "hadamard+projection+doubt")
    options: dict[str, Any] = field(default_factory=lambda: {"private": "none"})
    rate: dict[str, Any] = field(default_factory=lambda: {"lr": 6e-4})
    rows: int = 1000
    """Of the test set of each task."""

    only_measured: ClassVar[tuple[str, ...]] = ("rows", "methods")

    def runs(self, name: str) -> list[str]:
        return [f"{name}-{chosen}" for chosen in self.methods]

    def measure(self, name: str, learner: Learner) -> Measures:
        measured: Measures = {}
        for chosen, run in zip(self.methods, self.runs(name), strict=True):
            stream = Permuting(learner.dataset(self.dataset), tasks=self.tasks, period=self.steps)
            outcome = learner.train(
                run,
                network(stream, self.units, self.options),
                stream,
                method(chosen, **self.options),
                **self.rate,
                evaluate_every=self.steps,
            )
            model: Any = outcome.model.eval()
            measured[chosen] = {
                "told_all": percent(outcome.result["mean_all"], 1),
                **stored(model),
                **by_evidence(model, stream, ("log-sum-exp", "entropy"), self.rows),
            }
        return {"methods": measured}

    def words(self) -> str:
        return f"{self.tasks} permuted tasks, {self.steps:,} steps each, 2 × {self.units} units"
