"""Tasks that are known while they are learned, and recognised afterwards, from one image."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from superpose.learning import method
from superpose.recognition import Statistics
from superpose_lab.data import ImageStream, Permuting, Returning, Rotating, Turning
from superpose_lab.experiments.recognition.measures import auroc, by_evidence, stored
from superpose_lab.experiments.recognition.protocol import (
    Learner,
    Measures,
    RecognitionProtocol,
    drawn,
    percent,
)
from superpose_lab.networks import MLP

STREAMS: dict[str, Any] = {
    "permuting": Permuting,
    "returning": Returning,
    "rotating": Rotating,
    "turning": Turning,
}
SOME = 200  # rows of a task that rows of no task are compared with, and of each of those
NEW = 10  # tasks that are not learned


@dataclass(frozen=True, kw_only=True)
class AfterLearning(RecognitionProtocol):
    """An MLP of two hidden layers learns task after task."""

    stream: Literal["permuting", "turning"] = "permuting"
    dataset: str = "mnist"
    tasks: int
    steps: int = 1000
    """For each task."""
    units: int = 256
    method: str = "hadamard+projection"
    options: dict[str, Any] = field(
        default_factory=lambda: {"private": "none", "recognise": Statistics()}
    )
    """Options of `superpose`. The network has biases unless they say `private="none"`, and weights
    that stay as they were drawn if they say `bind_frozen=True`."""
    rate: dict[str, Any] = field(default_factory=lambda: {"lr": 6e-4, "schedule": "cosine"})
    """Options of `train`."""
    rows: int = 1000
    """Of the test set of each task."""
    evidence: tuple[str, ...] = ("inputs", "log-sum-exp", "entropy")
    other: str = "fashion-mnist"
    """A data set whose rows are of no task."""

    only_measured: ClassVar[tuple[str, ...]] = ("rows", "evidence", "other")

    def runs(self, name: str) -> list[str]:
        return [name]

    def measure(self, name: str, learner: Learner) -> Measures:
        stream = self._stream(learner, self.dataset, self.tasks, self.steps)
        outcome = learner.train(
            name,
            network(stream, self.units, self.options),
            stream,
            method(self.method, **self.options),
            **self.rate,
            evaluate_every=self.steps,
        )
        model: Any = outcome.model.eval()
        return {
            "told_all": percent(outcome.result["mean_all"], 1),
            **stored(model),
            "numbers_to_learn_more": outcome.result["numbers"]["penalty"],
            **by_evidence(model, stream, self.evidence, self.rows),
            **self._unknown(model, stream, learner),
        }

    def words(self) -> str:
        kind = {"permuting": "permuted", "turning": "turned by 10° more each"}[self.stream]
        return (
            f"{self.tasks} tasks, {kind}, {self.steps:,} steps each, 2 × {self.units} units, "
            f"{self.method}"
        )

    def _stream(self, learner: Learner, dataset: str, tasks: int, steps: int) -> ImageStream:
        made: ImageStream = STREAMS[self.stream](
            learner.dataset(dataset), tasks=tasks, period=steps
        )
        return made

    def _unknown(self, model: Any, stream: ImageStream, learner: Learner) -> Measures:
        """Known rows against those of other data and of tasks that were not learned."""

        def recognised(rows: Iterable[Tensor]) -> Any:
            return model.recognise(torch.cat(list(rows)), evidence="inputs")

        few = range(0, self.tasks, max(self.tasks // 10, 1))
        usual = recognised(stream.test(task)[0][-SOME:] for task in few).surprise
        other = self._stream(learner, self.other, self.tasks, 1)
        strange = recognised(other.test(task)[0][:SOME] for task in range(0, self.tasks, 5))
        measured = {"auroc_other_data": round(auroc(usual, strange.surprise), 6)}
        if self.stream == "permuting":
            more = self._stream(learner, self.dataset, self.tasks + NEW, 1)
            new = recognised(more.test(self.tasks + task)[0][:SOME] for task in range(NEW))
            measured["auroc_other_tasks"] = round(auroc(usual, new.surprise), 6)
            noticed = int((~new.known).sum())
            measured["other_tasks_noticed"] = percent(noticed, len(new.known))
        return measured


def network(stream: ImageStream, units: int, options: dict[str, Any]) -> MLP:
    """The MLP for the images of a stream; it has biases if they are private."""
    bias = options.get("private") != "none"
    inputs = math.prod(stream.input_shape)
    net = drawn(lambda: MLP(inputs, units, stream.classes, 2, bias))
    assert isinstance(net, MLP)
    if options.get("bind_frozen"):
        for parameter in net.parameters():
            parameter.requires_grad_(parameter.ndim == 1)
    return net
