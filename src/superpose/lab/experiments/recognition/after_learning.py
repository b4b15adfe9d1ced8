"""Tasks that are told while they are learned, and found afterwards, from one image."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from superpose.lab.data import STREAMS, ImageStream, Permuting, Turning
from superpose.lab.experiments.recognition.measures import (
    auroc,
    by_evidence,
    stored,
    surprise,
)
from superpose.lab.experiments.recognition.protocol import (
    Found,
    Learner,
    RecognitionProtocol,
    drawn,
    options_in_words,
    percent,
)
from superpose.lab.networks import MLP
from superpose.learning import method
from superpose.recognition import Statistics
from superpose.recognition.finding import FARTHEST

ALL = ("inputs", "shortlist", "log-sum-exp", "entropy", "gradient")
BY_INPUTS = {"private": "none", "recognise": Statistics()}
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
    options: dict[str, Any] = field(default_factory=lambda: dict(BY_INPUTS))
    """Those of `superpose`. The network has biases unless they say `private="none"`, and weights
    that stay as they were drawn if they say `bind_frozen=True`."""
    rate: dict[str, Any] = field(default_factory=lambda: {"lr": 6e-4, "schedule": "cosine"})
    """Those of `train`."""
    rows: int = 1000
    """Of the test set of each task."""
    evidence: tuple[str, ...] = ALL
    other: str = "fashion-mnist"
    """A data set whose rows are of no task."""

    only_measured: ClassVar[tuple[str, ...]] = ("rows", "evidence", "other")

    def runs(self, name: str) -> list[str]:
        """One."""
        return [name]

    def measure(self, name: str, learner: Learner) -> Found:
        """Learn, and recognise test rows by each kind of evidence."""
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

    def extras(self) -> str:
        """Tell options of `superpose`."""
        return options_in_words(self.options)

    def words(self) -> str:
        """Data, tasks, network, method."""
        kind = {"permuting": "permuted", "turning": "turned by 10° more each"}[self.stream]
        return (
            f"{self.tasks} tasks, {kind}, {self.steps:,} steps each, 2 × {self.units} units, "
            f"{self.method}"
        )

    def _stream(self, learner: Learner, dataset: str, tasks: int, steps: int) -> ImageStream:
        kind: Any = STREAMS[self.stream]
        made: ImageStream = kind(learner.dataset(dataset), tasks=tasks, period=steps)
        return made

    def _unknown(self, model: Any, stream: ImageStream, learner: Learner) -> Found:
        """Known rows against those of other data and of tasks that were not learned."""
        few = range(0, self.tasks, max(self.tasks // 10, 1))
        usual = surprise(model, (stream.test(task)[0][-SOME:] for task in few))
        other = self._stream(learner, self.other, self.tasks, 1)
        strange = (other.test(task)[0][:SOME] for task in range(0, self.tasks, 5))
        found = {"auroc_other_data": round(auroc(usual, surprise(model, strange)), 6)}
        if isinstance(stream, Permuting) and not isinstance(stream, Turning):
            more = self._stream(learner, self.dataset, self.tasks + NEW, 1)
            new = (more.test(self.tasks + task)[0][:SOME] for task in range(NEW))
            unlearned = surprise(model, new)
            found["auroc_other_tasks"] = round(auroc(usual, unlearned), 6)
            noticed = int((unlearned > FARTHEST).sum())
            found["other_tasks_noticed"] = percent(noticed, len(unlearned))
        return found


def network(stream: ImageStream, units: int, options: dict[str, Any]) -> MLP:
    """The MLP for the images of a stream; biases need a task of their own."""
    bias = options.get("private") != "none"
    inputs = math.prod(stream.input_shape)
    made = drawn(lambda: MLP(inputs, units, stream.classes, 2, bias))
    assert isinstance(made, MLP)
    if options.get("bind_frozen"):
        for parameter in made.parameters():
            parameter.requires_grad_(parameter.ndim == 1)
    return made
