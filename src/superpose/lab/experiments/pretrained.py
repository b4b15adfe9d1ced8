"""Fine-tune after fine-tune of a pretrained network: problems, methods, and one run.

Each problem is a pretrained network and tasks that are learned one after the other, a fixed number
of steps each, by Adam with a cosine schedule. Methods differ in what a task keeps for itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.lab.data import Incremental, Permuting, load
from superpose.lab.data.blocks import Blocks
from superpose.lab.data.data_directory import directory
from superpose.lab.data.datasets import normalise
from superpose.lab.data.drawn import DrawnTasks, Split, Splits, split_off
from superpose.lab.data.fortunes import quotations
from superpose.lab.data.reviews import reviews
from superpose.lab.experiments.storage import round_weights, stored
from superpose.lab.networks import MLP, ResNet18
from superpose.lab.networks.adapters import Adapted
from superpose.lab.networks.efficientnet import DEVIATION, MEAN, efficientnet_lite0
from superpose.lab.networks.minilm import minilm, tokenised
from superpose.learning import Display, Outcome, Quiet, method, train
from superpose.learning.evaluation import accuracy
from superpose.learning.labelled import Labelled
from superpose.learning.methods import Method
from superpose.learning.run_directory import write
from superpose.learning.streams import Stream, TensorStream
from superpose.model import unsuperpose

NetName = Literal["mlp", "lite0", "minilm", "minilm-reviews", "resnet16", "resnet32"]
MethodName = Literal["separate", "trunk", "lora", "scrambled", "superposed"]
GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
TUNING_SEED = 1000  # of tasks that no result is measured on
BITS = 8


@dataclass(frozen=True, kw_only=True)
class FineTunes:
    """One run: tasks learned one after the other from a pretrained network."""

    net: NetName
    """mlp (256 units, MNIST), lite0 (EfficientNet-lite0, ImageNet), minilm (MiniLM-L6),
    minilm-reviews (MiniLM-L6 too, whose first task is the sentiment of film reviews), resnet16 or
    resnet32 (ResNet-18 of that width, CIFAR-10)."""
    method: MethodName
    """separate (a network for each task), trunk (one network, a head for each task), lora
    (adapters for each task), scrambled (superposed without a base) or superposed."""
    tasks: int = 8
    """How many tasks."""
    seed: int = 0
    """Of tasks, batches, contexts and adapters."""
    lr: float | None = None
    """Learning rate; left out, the best of `tune`."""
    rank: int = 0
    """Directions that each task has for itself (lora, superposed)."""
    rank_lr: float | None = None
    """Learning rate of the low-rank part (superposed); left out, that which `tune` found for LoRA
    of the nearest rank."""
    family: str = "hadamard"
    """Contexts (scrambled, superposed)."""
    centre: str | None = None
    """task or rows (superposed)."""
    min_inputs: int | None = None
    """Layers with fewer inputs are private (lora, superposed)."""
    projection: bool = False
    """Gradients are projected (scrambled, superposed)."""
    small: bool = True
    """Tasks have biases and norms of their own (lora)."""
    steps: int | None = None
    """Steps for each task; left out, those of the problem."""
    group: int | None = None
    """Classes of a task; left out, ten of CIFAR-100 or four topics."""
    options: str = "{}"
    """Other arguments of `superpose`, as JSON."""

    @property
    def label(self) -> str:
        """What tells methods of one problem apart, as the name of a folder."""
        parts: list[str] = [self.method]
        if self.method in ("scrambled", "superposed"):
            parts += [self.family] + ["projection"] * self.projection
            parts += [f"centre-{self.centre}"] if self.centre else []
            parts += [f"min{self.min_inputs}"] if self.min_inputs else []
            more = json.loads(self.options)
            parts += [f"{name}-{value}".replace("/", "") for name, value in more.items()]
        elif self.min_inputs:
            parts += [f"min{self.min_inputs}"]
        parts += [f"r{self.rank}"] if self.rank else []
        parts += ["frozen-norms"] if self.method == "lora" and not self.small else []
        return "-".join(parts)

    @property
    def problem_label(self) -> str:
        """What tells problems apart."""
        other = f"-{self.group}-classes" if self.group else ""
        return self.net + other + (f"-{self.steps}-steps" if self.steps else "")


@dataclass(frozen=True)
class Problem:
    """A pretrained network, its tasks, and how long each is learned.

    `own_head`: classes mean something else in every task, so each has a head of its own. `known`
    makes the test rows of the task that the network comes with.
    """

    network: Callable[[], nn.Module]
    stream: Callable[[FineTunes, bool], Stream]  # with True, tested on validation rows
    head: str
    own_head: bool
    steps: int
    batch_size: int
    known: Callable[[], Split] | None = None


def problem(settings: FineTunes) -> Problem:
    """The problem of a network's name."""
    if settings.net not in PROBLEMS:
        known = ", ".join(PROBLEMS)
        raise SuperposeError(f"there is no network {settings.net!r}; there are {known}")
    return PROBLEMS[settings.net]


@cache
def _pretrained_mlp() -> nn.Module:
    """256 units that learned MNIST upright, in 1500 steps."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = MLP(784, 256, 10)
    stream = Permuting(load("mnist"), period=1500, tasks=1, seed=0)
    options: dict[str, Any] = {"optimiser": "adam", "lr": 1e-3, "schedule": "cosine"}
    return train(net, stream, display=Quiet(), **options).model


def _blocks(settings: FineTunes, validation: bool) -> Stream:
    steps = settings.steps or MLP_BLOCKS.steps
    return Blocks(
        load("mnist"),
        settings.tasks,
        period=steps,
        batch_size=MLP_BLOCKS.batch_size,
        seed=settings.seed,
        validation=validation,
    )


def _lite0() -> nn.Module:
    net = efficientnet_lite0()
    net.head = _head(1280, 10)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # smaller images have other statistics, and the steps are few
    return net


def _head(width: int, classes: int) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(width, classes)


@cache
def splits(name: str, data_dir: Path | None = None) -> Splits:
    """A data set of images, a tenth of whose training rows are held out."""
    data = load(name, data_dir)
    rows, test = (
        Split(torch.from_numpy(part.images), torch.from_numpy(part.labels))
        for part in (data.train, data.test)
    )
    return Splits(*split_off(rows, 0.1), test)


def enlarged(images: Tensor) -> Tensor:
    """CIFAR images (B, 3, 32, 32) as EfficientNet-lite0 knows images, at 64 pixels."""
    mean, deviation = (torch.tensor(one).view(3, 1, 1) for one in (MEAN, DEVIATION))
    x = (images.float() / 255 - mean) / deviation
    return F.interpolate(x, size=64, mode="bilinear", align_corners=False)


def _drawn(
    settings: FineTunes, about: Problem, name: str, rows: Splits, group: int, **options: Any
) -> DrawnTasks:
    """Tasks of some classes each, which are drawn from all that there are."""
    return DrawnTasks(
        name,
        rows,
        settings.group or group,
        settings.tasks,
        period=settings.steps or about.steps,
        batch_size=about.batch_size,
        seed=settings.seed,
        **options,
    )


def _classes(settings: FineTunes, validation: bool) -> Stream:
    test_on = "validation" if validation else "test"
    options = {"prepare": enlarged, "test_on": test_on}
    return _drawn(settings, LITE0_CLASSES, "CIFAR-100", splits("cifar100"), 10, **options)


LENGTH = 32  # tokens
MOST = 240  # quotations of a topic, so that no topic is most of its task
REVIEW_LENGTH, MOST_REVIEWS = 64, 1000


@cache
def _quotations() -> Splits:
    return _texts(quotations(), MOST, LENGTH)


@cache
def _reviews() -> Splits:
    return _texts(reviews(), MOST_REVIEWS, REVIEW_LENGTH)


def _texts(by_class: dict[str, list[str]], most: int, length: int) -> Splits:
    """The tokens of the first texts of each class; a quarter is for tests."""
    labels = [k for k, texts in enumerate(by_class.values()) for _ in texts[:most]]
    ids = tokenised([text for texts in by_class.values() for text in texts[:most]], length)
    rows, test = split_off(Split(ids, torch.tensor(labels)), 0.25)
    return Splits(*split_off(rows, 0.2), test)


def _topics(settings: FineTunes, validation: bool) -> DrawnTasks:
    test_on = "validation" if validation else "test"
    return _drawn(settings, MINILM_TOPICS, "fortunes", _quotations(), 4, test_on=test_on)


def _reviews_and_topics(settings: FineTunes, validation: bool) -> Stream:
    """Sentiment first, then topics: a task of another kind that all others come after."""
    if settings.tasks < 2:
        raise SuperposeError(f"tasks={settings.tasks}: reviews are followed by at least one task")
    topics = _topics(replace(settings, tasks=settings.tasks - 1), validation)
    tested = _reviews().validation if validation else _reviews().test
    return TensorStream(
        [
            (*_reviews().train, *tested),
            *(topics.rows(k) + topics.test(k) for k in range(topics.tasks)),
        ],
        period=topics.period,
        batch_size=topics.batch_size,
        seed=settings.seed,
    )


def _minilm() -> nn.Module:
    net = minilm(4)
    net.head = _head(net.head.in_features, 4)
    return net


def _pretrained_resnet(width: int) -> nn.Module:
    """A ResNet-18 that learned CIFAR-10 in 1000 steps; a run in the data directory keeps it."""
    place = directory().path / "networks" / f"resnet18-width-{width}"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ResNet18(width=width)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # PyTorch lacks it
    stream = Incremental(load("cifar10"), tasks=1, period=RESNET16.steps)
    options: dict[str, Any] = {"optimiser": "adam", "lr": 1e-3, "schedule": "cosine"}
    kept: dict[str, Any] = {"out": place, "resume": True, "save_every": 120}
    return train(net, stream, display=Quiet(), **options, **kept).model


def _next_classes(settings: FineTunes, validation: bool) -> Stream:
    """Ten classes of CIFAR-100 at a time, as the paper has them after CIFAR-10."""
    rows = splits("cifar100")
    tested = rows.validation if validation else rows.test
    both = Split(*map(torch.cat, zip(rows.train, rows.validation, strict=True)))
    learned = rows.train if validation else both
    starts = range(10, 10 * (settings.tasks + 1), 10)
    return TensorStream(
        [(*_ten(learned, start), *_ten(tested, start)) for start in starts],
        period=settings.steps or RESNET16.steps,
        batch_size=RESNET16.batch_size,
        seed=settings.seed,
    )


def _ten(rows: Split, start: int) -> Split:
    """Ten classes of images, as a network takes them, numbered from zero."""
    own = (rows.y >= start) & (rows.y < start + 10)
    return Split(normalise(rows.x[own], "colour"), rows.y[own] - start)


def _cifar10() -> Split:
    return _ten(splits("cifar10").test, 0)


MLP_BLOCKS = Problem(_pretrained_mlp, _blocks, "layers.5", False, steps=400, batch_size=128)
LITE0_CLASSES = Problem(_lite0, _classes, "head", True, steps=80, batch_size=24)
MINILM_TOPICS = Problem(_minilm, _topics, "head", True, steps=60, batch_size=16)
MINILM_REVIEWS = replace(MINILM_TOPICS, stream=_reviews_and_topics)
RESNET16 = Problem(
    partial(_pretrained_resnet, 16),
    _next_classes,
    "head",
    True,
    steps=1000,
    batch_size=128,
    known=_cifar10,
)
RESNET32 = replace(RESNET16, network=partial(_pretrained_resnet, 32))
PROBLEMS: dict[str, Problem] = {
    "mlp": MLP_BLOCKS,
    "lite0": LITE0_CLASSES,
    "minilm": MINILM_TOPICS,
    "minilm-reviews": MINILM_REVIEWS,
    "resnet16": RESNET16,
    "resnet32": RESNET32,
}


def chosen_method(settings: FineTunes, own_layers: list[str]) -> Method:
    """The method, for a network some of whose layers belong to each task as a whole."""
    if settings.method == "separate":
        return method("separate")
    if settings.method == "trunk":
        return method("multihead")
    if settings.method == "lora":

        def adapted(net: nn.Module, count: int, seed: int) -> Adapted:
            own = [*own_layers, *small_layers(net, settings.min_inputs or 0)]
            return Adapted(net, count, settings.rank, own=own, small=settings.small, seed=seed)

        return Method("lora", adapted, "task")
    options: dict[str, Any] = {"private_layers": own_layers} | json.loads(settings.options)
    if settings.method == "superposed":
        given = {"rank": settings.rank, "centre": settings.centre}
        given["min_inputs"] = settings.min_inputs
        options = {"base": True, **{k: v for k, v in given.items() if v}, **options}
    name = settings.family + ("+projection" if settings.projection else "")
    return method(name, **options)


def small_layers(net: nn.Module, least: int) -> list[str]:
    """Linear and convolution layers with fewer inputs, for each group, than `least`.

    >>> small_layers(nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 2)), 33)
    ['0']
    """
    return [
        name
        for name, layer in net.named_modules()
        if isinstance(layer, (nn.Linear, nn.Conv2d)) and layer.weight[0].numel() < least
    ]


def run(
    settings: FineTunes,
    out: Path | None = None,
    *,
    validation: bool = False,
    given: Problem | None = None,
    display: Display | None = None,
    stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Learn all tasks; with `out`, into a directory that a killed run goes on from.

    Beside the files of a run it has `storage.json`: bytes stored, with everything, and what the
    accuracy is when all that was learned is rounded to eight bits; and, of a network that comes
    with a task, that of its base after all others were learned.
    """
    if settings.lr is None:
        raise SuperposeError("no learning rate: give lr, or find one with tune")
    about = given or problem(settings)
    net, stream = about.network(), about.stream(settings, validation)
    chosen = chosen_method(settings, [about.head] if about.own_head else [])
    outcome = train(
        net,
        stream,
        chosen,
        optimiser="adam",
        lr=settings.lr,
        rank_lr=settings.rank_lr,
        schedule="cosine",
        reset=True,
        evaluate_every=len(stream),
        matrix="ends",
        seed=settings.seed,
        about=asdict(settings),
        label=settings.label,
        out=out,
        resume=True,
        save_every=120,
        display=display,
        stop=stop,
    )
    if out is not None and not (out / "storage.json").exists():
        bytes_of = stored(net, outcome.model, stream.tasks, chosen.hook.numbers)
        found: dict[str, Any] = {"bytes": bytes_of}
        if about.known is not None and settings.method == "superposed":
            found["base"] = accuracy(unsuperpose(outcome.model), Labelled(*about.known(), 0, 0))
        if (rounded := round_weights(outcome.model, BITS)) is not None:
            model, saved = rounded
            tests = (Labelled(*stream.test(k), k, k, chosen.select) for k in range(stream.tasks))
            right = [accuracy(model, test) for test in tests]
            found["eight_bits"] = {"final": right, "mean_all": sum(right) / len(right)}
            found["eight_bits"]["bytes"] = bytes_of["total"] - saved
        write(out / "storage.json", (json.dumps(found, indent=2) + "\n").encode())
    return outcome


def tune(settings: FineTunes, out: Path, grid: tuple[float, ...] = GRID) -> dict[str, Any]:
    """Try learning rates on other tasks and validation rows; write and return what was found."""
    done: dict[str, float] = {}
    if out.exists():
        done = json.loads(out.read_text())["mean_all"]
    for lr in grid:
        if f"{lr:g}" in done:
            continue
        tried = replace(settings, lr=lr, seed=TUNING_SEED)
        try:
            done[f"{lr:g}"] = run(tried, validation=True, display=Quiet()).result["mean_all"]
        except SuperposeError as error:
            if "learning broke down" not in str(error):
                raise
            done[f"{lr:g}"] = 0.0
        best = max(done, key=lambda one: done[one])
        found: dict[str, Any] = {
            "about": asdict(replace(settings, seed=TUNING_SEED)),
            "mean_all": done,
        }
        found["lr"] = float(best)
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, (json.dumps(found, indent=2) + "\n").encode())
    return dict(json.loads(out.read_text()))
