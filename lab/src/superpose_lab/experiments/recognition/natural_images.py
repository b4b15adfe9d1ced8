"""Natural images: CIFAR-100 in ten tasks of ten classes, learned task after task."""

import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from superpose.learning import method
from superpose.recognition import Statistics, keep
from superpose_lab.data.drawn import DrawnTasks, Splits
from superpose_lab.experiments.fine_tunes import LITE0_CLASSES, enlarged, splits
from superpose_lab.experiments.recognition.measures import by_evidence, stored
from superpose_lab.experiments.recognition.protocol import (
    Learner,
    Measures,
    RecognitionProtocol,
    drawn,
    percent,
)
from superpose_lab.networks import ResNet18

AT_ONCE = 50  # rows
TITLES = {"cifar100": "CIFAR-100"}


@dataclass(frozen=True, kw_only=True)
class NaturalImages(RecognitionProtocol):
    """A convolutional network learns task after task; deep features are remembered afterwards."""

    network: Literal["efficientnet-lite0", "resnet-18"]
    """EfficientNet-lite0 has the weights of ImageNet, ResNet-18 random ones."""
    width: int = 16
    """Of ResNet-18."""
    dataset: str = "cifar100"
    tasks: int = 10
    classes: int = 10
    """Of each task."""
    steps: int
    """For each task."""
    batch_size: int
    method: str
    options: dict[str, Any]
    """Options of `method`: strengths of its hooks, and options of `superpose`."""
    rate: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-3})
    """Options of `train`."""
    features: str
    """The layer whose inputs are remembered."""
    rank: int = 16
    """Of the statistics of those inputs."""
    remembered: int = 1000
    """Rows of each task that the statistics are made of."""
    rows: int = 300
    """Of the test set of each task."""

    only_measured: ClassVar[tuple[str, ...]] = ("features", "rank", "remembered", "rows")

    def runs(self, name: str) -> list[str]:
        return [name]

    def measure(self, name: str, learner: Learner) -> Measures:
        """Learn; recognise test rows by outputs, and by the inputs of a deep layer."""
        rows = splits(self.dataset, learner.data_dir)
        stream = DrawnTasks(
            TITLES.get(self.dataset, self.dataset), rows, self.classes, self.tasks,
            period=self.steps, batch_size=self.batch_size, seed=0, prepare=self._prepare,
        )  # fmt: skip
        outcome = learner.train(
            name,
            drawn(lambda: self._network(rows)),
            stream,
            method(self.method, **self.options),
            optimiser="adam",
            **self.rate,
            schedule="cosine",
            reset=True,
            evaluate_every=len(stream),
        )
        model: Any = outcome.model.eval()
        kinds = ("log-sum-exp", "entropy")
        measured = by_evidence(model, stream, kinds, self.rows, AT_ONCE)
        numbers = dict.fromkeys(kinds, 0)
        for kind, kept in self._statistics().items():
            keeping = self._remembering(model, stream, kept)
            deep = by_evidence(keeping, stream, ("inputs",), self.rows, AT_ONCE)
            for measure in ("accuracy", "task_right"):
                measured[measure][kind] = deep[measure]["inputs"]
            numbers[kind] = stored(keeping)["numbers_for_recognition"]
        return {
            "told_all": percent(outcome.result["mean_all"], 1),
            **stored(model),
            **measured,
            "numbers_by_evidence": numbers,
        }

    def _statistics(self) -> dict[str, Statistics]:
        """Statistics of the features: in each task's network, in the base, by classes."""
        of_tasks = Statistics(self.features, rank=self.rank)
        kinds = {f"inputs of {self.features}": of_tasks}
        if self.options.get("base"):
            of_base = replace(of_tasks, base=True)
            kinds[f"inputs of {self.features} in the base"] = of_base
            by_classes = replace(of_base, classes=self.classes)
            kinds[f"inputs of {self.features} in the base, by classes"] = by_classes
        return kinds

    def _remembering(self, model: Any, stream: DrawnTasks, kept: Statistics) -> Any:
        """A copy of the model whose tasks remember rows that they were learned from."""
        model = copy.deepcopy(model)
        keep(model, kept)
        for task in range(self.tasks):
            x, y = self._seen(stream, task)
            model.remember(x, task=task, classes=y if kept.classes else None)
        return model

    def words(self) -> str:
        kind = (
            "EfficientNet-lite0, pretrained"
            if self._pretrained
            else f"ResNet-18 of width {self.width}"
        )
        return (
            f"{kind}, {self.tasks} tasks of {self.classes} classes, {self.steps} steps of "
            f"{self.batch_size} rows each, {self.method}"
        )

    @property
    def _pretrained(self) -> bool:
        return self.network == "efficientnet-lite0"

    def _network(self, rows: Splits) -> nn.Module:
        if self._pretrained:
            return LITE0_CLASSES.network()
        return ResNet18(self.classes, self.width, rows.train.x.shape[1])

    def _prepare(self, images: Tensor) -> Tensor:
        return enlarged(images) if self._pretrained else images.float() / 127.5 - 1

    def _seen(self, stream: DrawnTasks, task: int) -> tuple[Tensor, Tensor]:
        """Rows that the task was learned from, as many as are remembered, and their classes."""
        needed = min(-(-self.remembered // self.batch_size), self.steps)
        first = task * self.steps
        batches = [stream.batch(step) for step in range(first, first + needed)]
        x, y = (torch.cat(parts) for parts in zip(*((b.x, b.y) for b in batches), strict=True))
        return x[: self.remembered], y[: self.remembered]
