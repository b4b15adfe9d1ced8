"""What an experiment is: a stream, a network, and the settings the paper used."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from superpose.errors import SuperposeError, at_least_one

if TYPE_CHECKING:
    from torch import nn

    from superpose.lab.data import ImageStream

ExperimentName = Literal["permuting-mnist", "rotating-mnist", "rotating-fashion", "icifar"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run. What is left out is what the paper used in that experiment."""

    experiment: Annotated[Positional[ExperimentName], arg(metavar="EXPERIMENT")]
    """permuting-mnist, rotating-mnist, rotating-fashion or icifar."""
    method: str = "binary"
    """standard, multihead, separate, fast, fast-localmix or a family (binary, complex, onepower,
    rotation, permutation, block-rotation, phase, hadamard, identity); ewc, ewc-online or si; or
    several, such as binary+ewc, hadamard+projection or binary+ewc+replay."""
    dataset: Annotated[str | None, arg(metavar="NAME")] = None
    """Other data than the experiment's, such as digits."""
    units: int = 256
    """Units of a hidden layer (MNIST, Fashion-MNIST)."""
    hidden: int = 2
    """Hidden layers (MNIST, Fashion-MNIST)."""
    width: int = 64
    """Width of the ResNet-18 (iCIFAR)."""
    stem: Literal["shared", "superposed", "private"] = "shared"
    """Whether the first convolution of the ResNet-18 is the same for all tasks, as in the paper, in
    superposition like the others, or one for each task (iCIFAR)."""
    conv: Literal["kernel", "channel"] = "kernel"
    """Whether the contexts of a convolution bind each number of its kernel, as in the paper, or
    each channel of its input (iCIFAR)."""
    private: Literal["none", "per-task"] = "none"
    """Whether each task has biases and norms of its own, or there are none, as in the paper."""
    centre: Literal["none", "task", "rows"] = "none"
    """Whether the mean of each task's inputs (task), or of each row (rows), is taken out before a
    layer binds them."""
    min_inputs: int = 0
    """Layers that bind fewer inputs than this are private to each task."""
    rank: int = 0
    """How many directions each task has for itself in every layer, as in LoRA."""
    tasks: Annotated[int | None, arg(metavar="INT")] = None
    """How many tasks."""
    steps: Annotated[int | None, arg(metavar="INT")] = None
    """Steps for each task; a rotating stream is one task."""
    period: int = 1000
    """Steps of a full turn (rotating)."""
    contexts: int = 10
    """Contexts of a full turn (rotating); fast and fast-localmix have one for each step of it."""
    batch_size: int = 128
    """Rows of a batch."""
    optimiser: Literal["rmsprop", "sgd", "adam", "adamw"] = "rmsprop"
    """How weights are updated."""
    lr: Annotated[float | None, arg(metavar="FLOAT")] = None
    """The learning rate."""
    schedule: Literal["constant", "cosine", "warm-cosine", "linear"] = "constant"
    """How the learning rate falls within each task; warm-cosine rises in its first tenth."""
    reset: bool = False
    """Start each task with a fresh optimiser state."""
    label_smoothing: float = 0.0
    """How much of each label is spread over all classes, from 0 to 1."""
    strength: Annotated[float | None, arg(metavar="FLOAT")] = None
    """Strength of the penalty of ewc, ewc-online, si or projection."""
    gain: float = 1.0
    """What the weights that a network starts with are multiplied with."""
    learnable: bool = False
    """Train the contexts too."""
    tasks_found: bool = False
    """Tell nothing of tasks: find them, while learning and when tested."""
    evaluate_every: Annotated[int | None, arg(metavar="INT")] = None
    """Steps between tests of the first and the current task."""
    matrix: Literal["auto", "full", "ends"] = "auto"
    """When a task ends, test all tasks learned so far (full) or the first and this one (ends); auto
    is full up to 20 tasks. All are tested at the end."""
    seed: int = 0
    """Seed of the data, the weights and the contexts."""
    threads: int = 1
    """Threads that PyTorch uses."""
    data_dir: Annotated[Path | None, arg(metavar="DIR")] = None
    """Where the data sets are; without it SUPERPOSE_DATA, and without that the user's cache."""


@dataclass(frozen=True, kw_only=True)
class Complete(Settings):
    """Settings with nothing left out."""

    dataset: str
    tasks: int
    steps: int
    lr: float
    evaluate_every: int


STEM: dict[str, dict[str, Any]] = {
    "shared": {"skip": ["stem"]},
    "superposed": {},
    "private": {"private_layers": ["stem"]},
}

OF_MLPS, OF_TURNS = ("units", "hidden"), ("period", "contexts")
OF_RESNETS = ("width", "stem", "conv")
COUNTS = (
    "units",
    "hidden",
    "width",
    "tasks",
    "steps",
    "period",
    "contexts",
    "batch_size",
    "evaluate_every",
    "threads",
)


@dataclass(frozen=True)
class Experiment:
    """What the settings of one experiment are when they are left out, and what they make."""

    dataset: str
    tasks: int
    steps: int
    lr: float
    evaluate_every: int
    stream: Callable[[Complete], ImageStream]
    network: Callable[[Complete, ImageStream], nn.Module]
    has_no: tuple[str, ...]

    def complete(self, given: Settings) -> Complete:
        """Fill in what was left out."""
        found = {field.name: getattr(given, field.name) for field in fields(Settings)}
        left_out = [name for name, value in found.items() if value is None and hasattr(self, name)]
        complete = Complete(**found | {name: getattr(self, name) for name in left_out})
        at_least_one(**{name: getattr(complete, name) for name in COUNTS})
        for name in self.has_no:
            if found[name] != getattr(Settings, name):
                raise SuperposeError(f"{name}={found[name]}: {given.experiment} has no {name}")
        if not complete.gain > 0:
            raise SuperposeError(f"gain={complete.gain}: it is above 0, or nothing is learned")
        return complete

    def layers(self, settings: Complete) -> dict[str, Any]:
        """What `superpose` is told of the layers of the network."""
        own = {
            "private": settings.private,
            "centre": None if settings.centre == "none" else settings.centre,
            "min_inputs": settings.min_inputs,
            "rank": settings.rank,
        }
        stem = {} if "stem" in self.has_no else STEM[settings.stem] | {"conv": settings.conv}
        return own | stem


def spelled(words: list[str], given: dict[str, Any], plain: dict[str, Any]) -> str:
    """A command line: words, and the options whose values are not the plain ones.

    >>> given = {"tasks": 3, "seed": 0, "label_smoothing": 0.1, "quiet": True}
    >>> plain = {"tasks": 10, "seed": 0, "label_smoothing": 0.0, "quiet": False}
    >>> spelled(["superpose", "demo"], given, plain)
    'superpose demo --tasks 3 --label-smoothing 0.1 --quiet'
    """
    words = list(words)
    for name, value in given.items():
        if value != plain[name]:
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)


def device() -> str:
    """A GPU if there is one, another for each process that learns with others; else the CPU."""
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def permuting(settings: Complete) -> ImageStream:
    """Permuted pixels, a new permutation for each task."""
    from superpose.lab.data import Permuting, load

    _check_no_cycle(settings)
    return Permuting(
        load(settings.dataset, settings.data_dir),
        tasks=settings.tasks,
        period=settings.steps,
        batch_size=settings.batch_size,
        seed=settings.seed,
        device=device(),
    )


def _check_no_cycle(settings: Complete) -> None:
    if settings.method.startswith("fast"):
        raise SuperposeError(
            f"fast has a context for each step of a cycle, and the tasks of {settings.experiment} "
            "do not come again: use it in rotating-mnist or rotating-fashion"
        )


def rotating(settings: Complete) -> ImageStream:
    """Images that turn, tested upright."""
    from superpose.lab.data import Rotating, load
    from superpose.learning import HOOKS

    held = settings.method.rpartition("+")[2]
    if held in HOOKS:
        raise SuperposeError(
            f"{held} holds what earlier tasks learned, and {settings.experiment} is one task: use "
            "another method, or an experiment with several tasks"
        )
    if settings.tasks != 1:
        raise SuperposeError(
            f"tasks={settings.tasks}: a rotating stream is one task; --steps makes it longer"
        )
    fast = settings.method.startswith("fast")
    return Rotating(
        load(settings.dataset, settings.data_dir),
        period=settings.period,
        contexts=settings.period if fast else settings.contexts,
        steps=settings.steps,
        batch_size=settings.batch_size,
        seed=settings.seed,
        device=device(),
    )


def incremental(settings: Complete) -> ImageStream:
    """CIFAR-10, then ten classes of CIFAR-100 at a time; or the classes of another data set."""
    from superpose.lab.data import Incremental, load

    _check_no_cycle(settings)
    dataset = load(settings.dataset, settings.data_dir)
    paper = settings.dataset == "cifar100"
    if not paper and settings.tasks > dataset.classes:
        raise SuperposeError(
            f"tasks={settings.tasks}: {settings.dataset} has {dataset.classes} classes to share out"
        )
    return Incremental(
        dataset,
        first=load("cifar10", settings.data_dir) if paper else None,
        group=10 if paper else dataset.classes // settings.tasks,
        tasks=settings.tasks,
        period=settings.steps,
        batch_size=settings.batch_size,
        seed=settings.seed,
        device=device(),
    )


def mlp(settings: Complete, stream: ImageStream) -> nn.Module:
    """The paper's fully connected network."""
    import math

    from superpose.lab.networks import MLP

    inputs = math.prod(stream.input_shape)
    bias = settings.private != "none"
    return MLP(inputs, settings.units, stream.classes, settings.hidden, bias)


def resnet(settings: Complete, stream: ImageStream) -> nn.Module:
    """The paper's ResNet-18, channels last: a step takes three quarters of the time on a CPU.

    Not below 16 channels, where PyTorch's gradient of a strided 1 × 1 convolution writes beyond its
    memory: wrong numbers, or a crash (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    import torch

    from superpose.lab.networks import ResNet18

    net = ResNet18(stream.classes, settings.width, stream.input_shape[0])
    if settings.width >= 16:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # PyTorch lacks it
    return net


EXPERIMENTS: dict[str, Experiment] = {
    "permuting-mnist": Experiment(
        "mnist", 50, 1000, 1e-4, 500, permuting, mlp, (*OF_RESNETS, *OF_TURNS)
    ),
    "rotating-mnist": Experiment("mnist", 1, 50_000, 1e-4, 100, rotating, mlp, OF_RESNETS),
    "rotating-fashion": Experiment(
        "fashion-mnist", 1, 50_000, 1e-4, 100, rotating, mlp, OF_RESNETS
    ),
    "icifar": Experiment(
        "cifar100", 5, 20_000, 1e-3, 5000, incremental, resnet, (*OF_MLPS, *OF_TURNS)
    ),
}
