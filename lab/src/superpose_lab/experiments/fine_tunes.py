"""Fine-tune after fine-tune of a pretrained network: problems, methods, and one run.

Each problem is a pretrained network and tasks that are learned one after the other, a fixed number
of steps each, by Adam with a cosine schedule. Methods differ in what each task stores.
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

from superpose import SuperposeError, unsuperpose
from superpose.learning import Display, Method, Outcome, Quiet, Stream, TensorStream, method
from superpose_lab.data import Incremental, Permuting, load
from superpose_lab.data.blocks import Blocks
from superpose_lab.data.clinc150 import Sentences, clinc150
from superpose_lab.data.data_directory import directory
from superpose_lab.data.datasets import normalise
from superpose_lab.data.drawn import DrawnTasks, Split, Splits, split_off
from superpose_lab.experiments.storage import round_weights, stored
from superpose_lab.experiments.training import learn
from superpose_lab.files import read_json, write_json
from superpose_lab.networks import MLP, ResNet18
from superpose_lab.networks.adapters import Adapted
from superpose_lab.networks.efficientnet import DEVIATION, MEAN, efficientnet_lite0
from superpose_lab.networks.minilm import minilm, tokenised

ProblemName = Literal["mlp", "lite0", "clinc150", "resnet16", "resnet32"]
MethodName = Literal["separate", "trunk", "lora", "scrambled", "superposed"]
GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
TUNING_SEED = 1000  # of tasks that no result is measured on
BITS = 8


@dataclass(frozen=True, kw_only=True)
class FineTunes:
    """One run: tasks learned one after the other from a pretrained network."""

    net: ProblemName
    """mlp (256 units, MNIST), lite0 (EfficientNet-lite0, CIFAR-100), clinc150 (MiniLM-L6, intents
    of a domain), resnet16 or resnet32 (ResNet-18 of that width, CIFAR-10, then CIFAR-100)."""
    method: MethodName
    """separate (a network for each task), trunk (one network, a head for each task), lora
    (adapters for each task), scrambled (superposed without a base) or superposed."""
    tasks: int = 8
    """The number of tasks."""
    seed: int = 0
    """The seed of tasks, batches, contexts and adapters."""
    lr: float | None = None
    """Learning rate; left out, the best of `tune`."""
    rank: int = 0
    """Rank of the private part of each task (lora, superposed)."""
    rank_lr: float | None = None
    """Learning rate of the low-rank part (superposed); left out, the one that `tune` chose for LoRA
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
    """Biases and norms are private (lora)."""
    steps: int | None = None
    """Steps for each task; left out, those of the problem."""
    group: int | None = None
    """Classes of a task; left out, ten of CIFAR-100, or the fifteen of a domain of CLINC150."""
    options: str = "{}"
    """Other arguments of `superpose`, as JSON."""

    @property
    def label(self) -> str:
        """The method and its settings, as the name of a folder."""
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
        """The problem and its settings, as the name of a folder."""
        other = f"-{self.group}-classes" if self.group else ""
        return self.net + other + (f"-{self.steps}-steps" if self.steps else "")


@dataclass(frozen=True)
class Problem:
    """A pretrained network, its tasks, and how long each is learned.

    `private_head`: classes mean something else in every task, so each has a head of its own.
    `known` makes the test rows of the task that the network was trained on.
    """

    network: Callable[[], nn.Module]
    stream: Callable[[FineTunes, bool], Stream]  # with True, tested on validation rows
    head: str
    private_head: bool
    steps: int
    batch_size: int
    known: Callable[[], Split] | None = None


def problem(settings: FineTunes) -> Problem:
    """Look up the problem of the settings."""
    if settings.net not in PROBLEMS:
        known = ", ".join(PROBLEMS)
        raise SuperposeError(f"there is no network {settings.net!r}; there are {known}")
    return PROBLEMS[settings.net]


def _length(settings: FineTunes, about: Problem) -> dict[str, Any]:
    steps = settings.steps or about.steps
    return {"period": steps, "batch_size": about.batch_size, "seed": settings.seed}


ADAM: dict[str, Any] = {"optimiser": "adam", "lr": 1e-3, "schedule": "cosine", "display": Quiet()}


@cache
def _pretrained_mlp() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = MLP(784, 256, 10)
    upright = Permuting(load("mnist"), period=1500, tasks=1, seed=0)
    return learn(net, upright, **ADAM).model


def _blocks(settings: FineTunes, validation: bool) -> Stream:
    length = _length(settings, MLP_BLOCKS)
    return Blocks(load("mnist"), settings.tasks, validation=validation, **length)


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
    """CIFAR images (B, 3, 32, 32) normalised for EfficientNet-lite0, at 64 pixels."""
    mean, deviation = (torch.tensor(one).view(3, 1, 1) for one in (MEAN, DEVIATION))
    x = (images.float() / 255 - mean) / deviation
    return F.interpolate(x, size=64, mode="bilinear", align_corners=False)


def _classes(settings: FineTunes, validation: bool) -> Stream:
    return DrawnTasks(
        "CIFAR-100",
        splits("cifar100"),
        settings.group or 10,
        settings.tasks,
        prepare=enlarged,
        test_on="validation" if validation else "test",
        **_length(settings, LITE0_CLASSES),
    )


LENGTH = 32  # tokens


@cache
def _sentences() -> Splits:
    data = clinc150()

    def tokens(part: Sentences) -> Split:
        return Split(tokenised(part.texts, LENGTH), torch.tensor(part.intents))

    return Splits(tokens(data.train), tokens(data.validation), tokens(data.test))


def _intents(settings: FineTunes, validation: bool) -> Stream:
    """The domains one after the other, fifteen intents each; or groups of intents, drawn."""
    data = clinc150()
    domains = [list(data.classes(domain)) for domain in data.domains]
    if settings.group is None and settings.tasks > len(domains):
        raise SuperposeError(
            f"tasks={settings.tasks}: CLINC150 has {len(domains)} domains; ask for no more, or "
            "give --group, the number of intents in a task"
        )
    return DrawnTasks(
        "CLINC150" if settings.group else "the domains of CLINC150",
        _sentences(),
        settings.group or len(domains[0]),
        settings.tasks,
        sets=[] if settings.group else domains[: settings.tasks],
        test_on="validation" if validation else "test",
        **_length(settings, MINILM_INTENTS),
    )


def _minilm(classes: int = 15) -> nn.Module:
    net = minilm(classes)
    net.head = _head(net.head.in_features, classes)
    return net


def _pretrained_resnet(width: int) -> nn.Module:
    """A ResNet-18 that learned CIFAR-10 in 1000 steps, kept as a run in the data directory."""
    place = directory().path / "networks" / f"resnet18-width-{width}"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ResNet18(width=width)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # PyTorch lacks it
    stream = Incremental(load("cifar10"), tasks=1, period=RESNET16.steps)
    return learn(net, stream, **ADAM, out=place, resume=True, save_every=120).model


def _next_classes(settings: FineTunes, validation: bool) -> Stream:
    """Ten classes of CIFAR-100 at a time, as the paper has them after CIFAR-10."""
    rows = splits("cifar100")
    tested = rows.validation if validation else rows.test
    both = Split(*map(torch.cat, zip(rows.train, rows.validation, strict=True)))
    learned = rows.train if validation else both
    starts = range(10, 10 * (settings.tasks + 1), 10)
    tasks = [(*_ten(learned, start), *_ten(tested, start)) for start in starts]
    return TensorStream(tasks, **_length(settings, RESNET16))


def _ten(rows: Split, start: int) -> Split:
    """Ten classes of images, normalised, numbered from zero."""
    chosen = (rows.y >= start) & (rows.y < start + 10)
    return Split(normalise(rows.x[chosen], "colour"), rows.y[chosen] - start)


def _cifar10() -> Split:
    return _ten(splits("cifar10").test, 0)


MLP_BLOCKS = Problem(_pretrained_mlp, _blocks, "layers.5", False, steps=400, batch_size=128)
LITE0_CLASSES = Problem(_lite0, _classes, "head", True, steps=80, batch_size=24)
MINILM_INTENTS = Problem(_minilm, _intents, "head", True, steps=300, batch_size=32)
RESNET16 = Problem(
    partial(_pretrained_resnet, 16), _next_classes, "head", True, 1000, 128, known=_cifar10
)
RESNET32 = replace(RESNET16, network=partial(_pretrained_resnet, 32))
PROBLEMS: dict[str, Problem] = {
    "mlp": MLP_BLOCKS,
    "lite0": LITE0_CLASSES,
    "clinc150": MINILM_INTENTS,
    "resnet16": RESNET16,
    "resnet32": RESNET32,
}


def chosen_method(settings: FineTunes, private_layers: list[str]) -> Method:
    """The method, for a network some of whose layers belong to each task as a whole."""
    if settings.method == "separate":
        return method("separate")
    if settings.method == "trunk":
        return method("multihead")
    if settings.method == "lora":

        def adapted(net: nn.Module, count: int, seed: int) -> Adapted:
            private = [*private_layers, *small_layers(net, settings.min_inputs or 0)]
            options: dict[str, Any] = {"small": settings.small, "seed": seed}
            return Adapted(net, count, settings.rank, private=private, **options)

        return Method("lora", adapted, "task")
    options: dict[str, Any] = {"private_layers": private_layers} | json.loads(settings.options)
    if settings.method == "superposed":
        given = {name: getattr(settings, name) for name in ("rank", "centre", "min_inputs")}
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
    """Learn all tasks; with `out`, into a directory from which a killed run resumes.

    Beside the files of a run it has `storage.json`: the bytes stored; the accuracy with all that
    was learned rounded to eight bits; and, of a network that comes with a task, the accuracy of its
    base after all others were learned.
    """
    if settings.lr is None:
        raise SuperposeError("no learning rate: give lr, or find one with tune")
    about = given or problem(settings)
    net, stream = about.network(), about.stream(settings, validation)
    chosen = chosen_method(settings, [about.head] if about.private_head else [])
    outcome = learn(
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
        bytes_of = stored(net, outcome.model, stream.tasks, outcome.guard.numbers)
        measured: dict[str, Any] = {"bytes": bytes_of}
        if about.known is not None and settings.method == "superposed":
            measured["base"] = accuracy(unsuperpose(outcome.model), *about.known())
        if (rounded := round_weights(outcome.model, BITS)) is not None:
            model, saved = rounded
            right = [accuracy(model, *stream.test(k), task=k) for k in range(stream.tasks)]
            eight = {"final": right, "mean_all": sum(right) / len(right)}
            measured["eight_bits"] = eight | {"bytes": bytes_of["total"] - saved}
        write_json(out / "storage.json", measured)
    return outcome


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, **task: int) -> float:
    """The share of rows that are classified right, a thousand at a time."""
    model.eval()
    parts = zip(x.split(1000), y.split(1000), strict=True)
    right = sum(int((model(rows, **task).argmax(1) == labels).sum()) for rows, labels in parts)
    return right / len(y)


def tune(settings: FineTunes, out: Path, grid: tuple[float, ...] = GRID) -> dict[str, Any]:
    """Try learning rates on other tasks and validation rows; write and return the accuracies."""
    settings = replace(settings, seed=TUNING_SEED)
    done: dict[str, float] = read_json(out)["mean_all"] if out.exists() else {}
    for lr in grid:
        if f"{lr:g}" not in done:
            try:
                tried = run(replace(settings, lr=lr), validation=True, display=Quiet())
                done[f"{lr:g}"] = tried.result["mean_all"]
            except SuperposeError as error:
                if "learning broke down" not in str(error):
                    raise
                done[f"{lr:g}"] = 0.0
            best = float(max(done, key=lambda one: done[one]))
            write_json(out, {"about": asdict(settings), "mean_all": done, "lr": best})
    return read_json(out)
