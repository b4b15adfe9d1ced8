"""Experiments: a stream, a network, and the settings that the paper used."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from superpose import SuperposeError
from superpose_lab.checks import at_least_one
from superpose_lab.options import DataDir, Flag, unset

if TYPE_CHECKING:
    from torch import nn

    from superpose_lab.data import ImageStream

ExperimentName = Literal["permuting-mnist", "rotating-mnist", "rotating-fashion", "icifar"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run. What is left out is what the paper used in that experiment."""

    experiment: Annotated[Positional[ExperimentName], arg(metavar="EXPERIMENT")]
    """The experiment: permuting-mnist, rotating-mnist, rotating-fashion or icifar."""
    method: str = "binary"
    """How the network keeps tasks apart:
    • standard: not at all; multihead: a head for each task;
      separate: a network for each task
    • a family of contexts: binary, complex, onepower, rotation,
      permutation, block-rotation, phase, hadamard, identity
    • fast, fast-localmix: a context for each step (rotating)
    • ewc, ewc-online, si: a penalty on change
    • several of these, such as binary+ewc,
      hadamard+projection or binary+ewc+replay"""
    dataset: Annotated[str | None, unset("NAME", "the experiment's own")] = None
    """Another data set, such as digits."""
    units: int = 256
    """Units in each hidden layer (not icifar)."""
    hidden: int = 2
    """The number of hidden layers (not icifar)."""
    width: int = 64
    """The width of the ResNet-18 (icifar)."""
    stem: Literal["shared", "superposed", "private"] = "shared"
    """The first convolution (icifar).
    • shared: one for all tasks, as in the paper
    • superposed: in superposition, like the other layers
    • private: one for each task"""
    conv: Literal["kernel", "channel"] = "kernel"
    """How convolutions bind (icifar).
    • kernel: each number of the kernel, as in the paper
    • channel: each channel of the input"""
    private: Literal["none", "per-task"] = "none"
    """Biases and norm layers: none, as in the paper, or one set per task."""
    centre: Literal["none", "task", "rows"] = "none"
    """Centring: subtract the mean of each task, or of each row, from a layer's input."""
    min_inputs: int = 0
    """Layers with fewer inputs than this are private to each task."""
    rank: int = 0
    """The rank of a low-rank part that each task has in every layer, as in LoRA."""
    rank_lr: Annotated[float | None, unset("FLOAT", "that of the weights")] = None
    """The learning rate of low-rank parts."""
    tasks: Annotated[int | None, unset("INT", "50; rotating 1; icifar 5")] = None
    """The number of tasks."""
    steps: Annotated[int | None, unset("INT", "1000; rotating 50000; icifar 20000")] = None
    """Training steps for each task."""
    period: int = 1000
    """Steps of one full turn (rotating)."""
    contexts: int = 10
    """Contexts in one full turn (rotating); fast and fast-localmix have one for each step."""
    batch_size: int = 128
    """Rows in a batch."""
    optimiser: Literal["rmsprop", "sgd", "adam", "adamw"] = "rmsprop"
    """The optimiser."""
    lr: Annotated[float | None, unset("FLOAT", "0.0001; icifar 0.001")] = None
    """The learning rate."""
    schedule: Literal["constant", "cosine", "warm-cosine", "linear"] = "constant"
    """How the learning rate falls within each task; warm-cosine rises in the first tenth."""
    reset: Flag = False
    """Reset the optimiser's state at the start of each task."""
    label_smoothing: float = 0.0
    """Label smoothing, from 0 to 1."""
    strength: Annotated[float | None, unset("FLOAT", "the method's own")] = None
    """The strength of ewc, ewc-online, si or projection."""
    gain: float = 1.0
    """A factor for the initial weights."""
    learnable: Flag = False
    """Train the contexts too."""
    tasks_found: Flag = False
    """Do not name the tasks: the network recognises them in training and in tests."""
    evaluate_every: Annotated[int | None, unset("INT", "500; rotating 100; icifar 5000")] = None
    """Steps between tests of the first and the current task."""
    matrix: Literal["auto", "full", "ends"] = "auto"
    """The tests when a task ends (all tasks are tested at the end).
    • full: all tasks so far
    • ends: the first task and this one
    • auto: full up to 20 tasks, then ends"""
    seed: int = 0
    """The seed of the data, the weights and the contexts."""
    threads: int = 1
    """The number of threads that PyTorch uses."""
    data_dir: DataDir = None
    """The directory of the data sets."""


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
COUNTS = (*OF_MLPS, *OF_TURNS, "width", "tasks", "steps", "batch_size", "evaluate_every", "threads")


@dataclass(frozen=True)
class Experiment:
    """One experiment: its defaults, its stream and its network."""

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
        values = {field.name: getattr(given, field.name) for field in fields(Settings)}
        left_out = [name for name, value in values.items() if value is None and hasattr(self, name)]
        complete = Complete(**values | {name: getattr(self, name) for name in left_out})
        at_least_one(**{name: getattr(complete, name) for name in COUNTS})
        for name in self.has_no:
            if values[name] != getattr(Settings, name):
                raise SuperposeError(
                    f"{name}={values[name]}: {given.experiment} has no {name}; leave it out"
                )
        if not complete.gain > 0:
            raise SuperposeError(f"gain={complete.gain}: must be above 0")
        return complete

    def layers(self, settings: Complete) -> dict[str, Any]:
        """The options of `superpose` about layers."""
        options = {
            "private": settings.private,
            "centre": None if settings.centre == "none" else settings.centre,
            "min_inputs": settings.min_inputs,
            "rank": settings.rank,
        }
        stem = {} if "stem" in self.has_no else STEM[settings.stem] | {"conv": settings.conv}
        return options | stem


def spelled(words: list[str], given: dict[str, Any], plain: dict[str, Any]) -> str:
    """A command line: words, and the options whose values are not the plain ones.

    >>> given = {"tasks": 3, "seed": 0, "label_smoothing": 0.1, "quiet": True}
    >>> plain = {"tasks": 10, "seed": 0, "label_smoothing": 0.0, "quiet": False}
    >>> spelled(["superpose-lab", "demo"], given, plain)
    'superpose-lab demo --tasks 3 --label-smoothing 0.1 --quiet'
    """
    words = list(words)
    for name, value in given.items():
        if value != plain[name]:
            flag = f"--{name.replace('_', '-')}"
            switch = flag if value is True else flag.replace("--", "--no-", 1)
            words += [switch] if isinstance(value, bool) else [flag, str(value)]
    return shlex.join(words)


def device() -> str:
    """A GPU if there is one, another for each process that learns with others; else the CPU."""
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def _dealt(settings: Complete) -> dict[str, Any]:
    return {"batch_size": settings.batch_size, "seed": settings.seed, "device": device()}


def permuting(settings: Complete) -> ImageStream:
    """Permuted pixels, a new permutation for each task."""
    from superpose_lab.data import Permuting, load

    _check_no_cycle(settings)
    dataset = load(settings.dataset, settings.data_dir)
    return Permuting(dataset, tasks=settings.tasks, period=settings.steps, **_dealt(settings))


def _check_no_cycle(settings: Complete) -> None:
    if settings.method.startswith("fast"):
        raise SuperposeError(
            f"method={settings.method}: it needs a stream that repeats, and {settings.experiment} "
            "does not: use it with rotating-mnist or rotating-fashion"
        )


def rotating(settings: Complete) -> ImageStream:
    """Images that turn, tested upright."""
    from superpose.learning import GUARDS
    from superpose_lab.data import Rotating, load

    held = settings.method.rpartition("+")[2]
    if held in GUARDS:
        raise SuperposeError(
            f"method={settings.method}: {held} protects earlier tasks, and {settings.experiment} "
            "has one task: use another method, or an experiment with several tasks"
        )
    if settings.tasks != 1:
        raise SuperposeError(
            f"tasks={settings.tasks}: a rotating stream is one task; make it longer with --steps"
        )
    fast = settings.method.startswith("fast")
    return Rotating(
        load(settings.dataset, settings.data_dir),
        period=settings.period,
        contexts=settings.period if fast else settings.contexts,
        steps=settings.steps,
        **_dealt(settings),
    )


def incremental(settings: Complete) -> ImageStream:
    """CIFAR-10, then ten classes of CIFAR-100 at a time; or the classes of another data set."""
    from superpose_lab.data import Incremental, load

    _check_no_cycle(settings)
    dataset = load(settings.dataset, settings.data_dir)
    paper = settings.dataset == "cifar100"
    if not paper and settings.tasks > dataset.classes:
        raise SuperposeError(
            f"tasks={settings.tasks}: {settings.dataset} has {dataset.classes} classes, enough for "
            f"{dataset.classes} tasks at most"
        )
    return Incremental(
        dataset,
        first=load("cifar10", settings.data_dir) if paper else None,
        group=10 if paper else dataset.classes // settings.tasks,
        tasks=settings.tasks,
        period=settings.steps,
        **_dealt(settings),
    )


def mlp(settings: Complete, stream: ImageStream) -> nn.Module:
    """The paper's fully connected network."""
    import math

    from superpose_lab.networks import MLP

    inputs = math.prod(stream.input_shape)
    bias = settings.private != "none"
    return MLP(inputs, settings.units, stream.classes, settings.hidden, bias)


def resnet(settings: Complete, stream: ImageStream) -> nn.Module:
    """The paper's ResNet-18, channels last: a step takes three quarters of the time on a CPU.

    Not below 16 channels, where PyTorch's gradient of a strided 1 × 1 convolution writes beyond its
    memory: wrong numbers, or a crash (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    import torch

    from superpose_lab.networks import ResNet18

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
