"""The list of figures and tables: which runs each needs at each scale, its numbers, its picture."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from superpose.lab.experiments.settings import EXPERIMENTS, ExperimentName, Settings
from superpose.lab.figures import (
    Scale,
    accuracy,
    counts,
    curves,
    geometry,
    propositions,
    samples,
)
from superpose.lab.figures.findings import Findings
from superpose.lab.figures.runs import Finished, Wanted

FORMS = ("standard", "binary", "complex", "onepower", "rotation", "hadamard", "phase")
SEEDS = 3
DATA = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar100": "CIFAR-10, then CIFAR-100",
    "digits": "digits",
}
COSINE: dict[str, Any] = {"schedule": "cosine", "lr": 2e-4}
OURS: dict[str, Any] = {"method": "hadamard+projection", "schedule": "cosine", "lr": 6e-4}
LARGER_STEPS = OURS | {"schedule": "warm-cosine", "lr": 1e-3, "label_smoothing": 0.1}
CHANGES: dict[str, dict[str, Any]] = {
    "binary, as in the paper": {},
    "three hidden layers": {"hidden": 3},
    "learned contexts": {"learnable": True},
    "a fresh optimiser state for each task": {"reset": True},
    "Adam": {"optimiser": "adam"},
    "initial weights halved": {"gain": 0.5},
    "initial weights doubled": {"gain": 2.0},
    "cosine schedule": COSINE,
    "cosine schedule, online EWC": COSINE | {"method": "binary+ewc-online", "strength": 1.0},
    "permutation": {"method": "permutation"},
    "block-rotation": {"method": "block-rotation"},
    "phase": {"method": "phase"},
    "rotation": {"method": "rotation"},
    "hadamard": {"method": "hadamard"},
    "hadamard, cosine schedule": COSINE | {"method": "hadamard"},
    "hadamard, cosine schedule, online EWC": COSINE
    | {"method": "hadamard+ewc-online", "strength": 1.0},
    "hadamard, ours without projection": OURS | {"method": "hadamard"},
    "ours without contexts": OURS | {"method": "identity+projection"},
    "ours, of the means alone": OURS | {"method": "hadamard+projection-means"},
    "ours with binary": OURS | {"method": "binary+projection"},
    "ours: hadamard, projection, cosine schedule": OURS,
    "ours, larger steps and smooth labels": LARGER_STEPS,
    "a network for each task": {"method": "separate"},
}
"""What might make the paper's method better or worse, and settings that try it."""
ICIFAR_CHANGES: dict[str, dict[str, Any]] = {
    "binary, as in the paper": {},
    "half as wide": {"width": 8},
    "twice as wide": {"width": 32},
    "a stem for each task": {"stem": "private"},
    "a third of the learning rate": {"lr": 3e-4},
    "cosine schedule": {"schedule": "cosine"},
    "hadamard": {"method": "hadamard"},
    "ours: binary, projection": {"method": "binary+projection"},
}
"""The same for a convolutional network."""
RECIPES: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "ours": OURS,
    "ours, larger steps and smooth labels": LARGER_STEPS,
}


@dataclass(frozen=True)
class Item(ABC):
    """A figure or table of the paper."""

    source: str
    title: str
    draw: Callable[[Findings], Any]

    @abstractmethod
    def wanted(self, scale: Scale) -> list[Wanted]:
        """The runs that it is drawn from."""

    @abstractmethod
    def table(self, scale: Scale, data: Finished, data_dir: Path | None) -> Findings:
        """Its numbers."""


@dataclass(frozen=True)
class Computed(Item):
    """One that needs no training."""

    compute: Callable[[Scale, Path | None], Findings]

    def wanted(self, scale: Scale) -> list[Wanted]:
        """None."""
        return []

    def table(self, scale: Scale, data: Finished, data_dir: Path | None) -> Findings:
        """Compute it."""
        return self.compute(scale, data_dir)


@dataclass(frozen=True)
class Learned(Item):
    """One that is drawn from runs."""

    runs: Callable[[Scale], Iterator[Wanted]]
    summarise: Callable[[list[Wanted], Finished], Findings]
    ylabel: str = "accuracy on the first task, %"
    labels: tuple[tuple[str, str], ...] = ()
    close_up: bool = False

    def wanted(self, scale: Scale) -> list[Wanted]:
        """The runs, the cheapest and most telling first."""
        return list(self.runs(scale))

    def table(self, scale: Scale, data: Finished, data_dir: Path | None) -> Findings:
        """Put the results of its runs together."""
        wanted = self.wanted(scale)
        full = [EXPERIMENTS[w.settings.experiment].complete(w.settings) for w in wanted]
        first = full[0]
        tens = first.tasks > 10 and all(each.steps == first.steps for each in full)
        return {
            "about": _about(wanted),
            "ylabel": self.ylabel,
            "labels": dict(self.labels),
            "close_up": self.close_up,
            "ten_tasks": 10 * first.steps if tens else None,
            **self.summarise(wanted, data),
        }


def permuting(scale: Scale, method: str, units: int) -> Settings:
    """Permuting MNIST at a scale."""
    paper = Settings(experiment="permuting-mnist", method=method, units=units)
    if scale == "paper":
        return paper
    if scale == "quick":
        return replace(paper, tasks=10, steps=300, evaluate_every=100)
    return replace(
        paper, dataset="digits", tasks=3, steps=20, evaluate_every=10, batch_size=32, lr=1e-3
    )


def rotating(scale: Scale, experiment: ExperimentName, method: str) -> Settings:
    """A rotating stream at a scale."""
    paper = Settings(experiment=experiment, method=method)
    if scale == "paper":
        return paper
    if scale == "quick":
        return replace(paper, steps=5000)
    return replace(
        paper,
        dataset="digits",
        units=32,
        steps=60,
        period=20,
        contexts=4,
        evaluate_every=5,
        batch_size=32,
        lr=1e-3,
    )


def incremental(scale: Scale, method: str, width: int, steps: int | None) -> Settings:
    """ICIFAR at a scale and a width."""
    paper = Settings(experiment="icifar", method=method, width=width)
    if scale == "smoke":
        small = {"tasks": 2, "steps": 6, "evaluate_every": 3, "batch_size": 16}
        return replace(paper, dataset="digits", **small)  # type: ignore[arg-type]
    if steps is None:
        return paper
    return replace(paper, steps=steps, evaluate_every=steps // 2)


def size_runs(scale: Scale) -> Iterator[Wanted]:
    """Standard and binary, from small to large networks."""
    sizes = {"smoke": (16, 32), "quick": (128, 256, 512), "paper": (128, 256, 512, 1024, 2048)}
    for units in sizes[scale]:
        seeds = SEEDS if scale == "paper" and units <= 512 else 1
        for method in ("binary", "standard"):
            yield Wanted(permuting(scale, method, units), seeds)


def method_runs(scale: Scale) -> Iterator[Wanted]:
    """Every form at 256 units, and our recipe."""
    for changes in (*({"method": method} for method in FORMS), OURS):
        settings = permuting(scale, "binary", 32 if scale == "smoke" else 256)
        yield Wanted(replace(settings, **changes), SEEDS if scale == "paper" else 1)


def average_runs(scale: Scale) -> Iterator[Wanted]:
    """The paper's table at 2000 units; complex and onepower at 1000 too, which take half as long.

    Rotation is left out, as in the paper: it stores as much as separate networks.
    """
    units = {"smoke": 48, "quick": 512, "paper": 2000}[scale]
    for method in ("standard", "binary", "hadamard", "phase", "ewc", "si", "complex", "onepower"):
        yield Wanted(permuting(scale, method, units))
    if scale == "paper":
        for method in ("complex", "onepower"):
            yield Wanted(permuting(scale, method, units // 2))


def recipe_runs(scale: Scale) -> Iterator[Wanted]:
    """One change at a time, at 256 units and 20 tasks, from the paper's method to ours."""
    paper = permuting(scale, "binary", 32 if scale == "smoke" else 256)
    if scale == "paper":
        paper = replace(paper, tasks=20)
    for label, changes in CHANGES.items():
        yield Wanted(replace(paper, **changes), label=label)


def our_runs(scale: Scale) -> Iterator[Wanted]:
    """The paper's method and ours, each at several sizes."""
    sizes: dict[Scale, tuple[tuple[int, int | None], ...]] = {
        "smoke": ((32, None),),
        "quick": ((256, None), (512, None)),
        "paper": ((256, 50), (2000, 10), (2048, 50)),
    }
    for units, tasks in sizes[scale]:
        paper = permuting(scale, "binary", units)
        paper = replace(paper, tasks=tasks or paper.tasks)
        where = f"{units} units, {paper.tasks} tasks"
        for label, changes in RECIPES.items():
            yield Wanted(replace(paper, **changes), label=f"{where}: {label}")


def large_runs(scale: Scale) -> Iterator[Wanted]:
    """Those of the table that are superposed, and standard, at its full size."""
    units = {"smoke": 48, "quick": 512, "paper": 2000}[scale]
    for each in average_runs(scale):
        if each.settings.units == units and each.settings.method not in ("ewc", "si"):
            yield each


def rotating_runs(experiment: ExperimentName, *methods: str) -> Callable[[Scale], Iterator[Wanted]]:
    """Methods on a rotating stream."""

    def runs(scale: Scale) -> Iterator[Wanted]:
        for method in methods:
            yield Wanted(rotating(scale, experiment, method), SEEDS if scale == "paper" else 1)

    return runs


def icifar_runs(scale: Scale) -> Iterator[Wanted]:
    """Narrow networks and few steps first: the paper's own setting asks for a GPU."""
    variants: dict[Scale, tuple[tuple[int, int | None, int], ...]] = {
        "smoke": ((4, None, 1),),
        "quick": ((8, 100, 1),),
        "paper": ((16, 1000, SEEDS), (32, 1000, 1), (64, None, 1)),
    }
    for width, steps, seeds in variants[scale]:
        for method in ("binary", "multihead", "standard"):
            yield Wanted(incremental(scale, method, width, steps), seeds)
    width, steps, seeds = variants[scale][0]
    yield Wanted(incremental(scale, "binary+projection", width, steps), seeds)


def icifar_recipe_runs(scale: Scale) -> Iterator[Wanted]:
    """One change at a time, in a narrow network and few steps."""
    steps = {"smoke": None, "quick": 100, "paper": 300}[scale]
    paper = incremental(scale, "binary", 16, steps)
    paper = replace(paper, tasks=paper.tasks or 3)
    for label, changes in ICIFAR_CHANGES.items():
        yield Wanted(replace(paper, **changes), label=label)


def _about(wanted: list[Wanted]) -> str:
    """The settings in words.

    >>> _about([Wanted(Settings(experiment="rotating-mnist"))])  # doctest: +ELLIPSIS
    'MNIST; 50,000 steps; 256 units in each of 2 hidden layers; batches of 128; rmsprop with ...'
    """
    full = [EXPERIMENTS[each.settings.experiment].complete(each.settings) for each in wanted]
    lengths = dict.fromkeys(
        f"{s.tasks} tasks of {s.steps:,} steps" if s.tasks > 1 else f"{s.steps:,} steps"
        for s in full
    )
    first = full[0]
    icifar = first.experiment == "icifar"
    sizes = list(dict.fromkeys(str(s.width if icifar else s.units) for s in full))
    if icifar and len(lengths) > 1:
        lengths = dict.fromkeys(
            f"{s.tasks} tasks of {s.steps:,} steps at width {s.width}" for s in full
        )
        shape = f"ResNet-18; {_and(lengths)}"
    elif icifar:
        shape = f"{next(iter(lengths))}; ResNet-18 of width {_and(sizes)}"
    else:
        units = f"{_and(sizes)} units in each of {first.hidden} hidden layers"
        shape = f"{_and(lengths)}; {units}"
    rate = f"{first.optimiser} with learning rate {first.lr:g}"
    for group, given in zip(wanted, full, strict=True):
        if not group.label and (given.lr, given.schedule) != (first.lr, first.schedule):
            rate += f" ({given.method}: {given.lr:g}, {given.schedule} schedule)"
    if any(group.label for group in wanted):
        rate += " unless the table says otherwise"
    return f"{DATA[first.dataset]}; {shape}; batches of {first.batch_size}; {rate}"


def _and(words: Iterable[str]) -> str:
    """A list in words.

    >>> _and(["128", "256", "512"])
    '128, 256 and 512'
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


UPRIGHT = "accuracy on upright images, %"
MEAN = "mean accuracy of all tasks, %"
TEN = (("complex", "complex, 10 contexts"), ("binary", "binary, 10 contexts"))

ITEMS: dict[str, Item] = {
    "table1": Computed(
        "Table 1",
        "Parameters of a superposed linear layer",
        counts.draw,
        lambda scale, data_dir: counts.table(scale),
    ),
    "fig-size": Learned(
        "Figure 2",
        "Permuting MNIST, by the size of the network",
        curves.by_size,
        size_runs,
        accuracy.size,
        "first task, %",
    ),
    "fig-methods": Learned(
        "Figure 3, left",
        "Permuting MNIST, by the form of superposition",
        curves.by_method,
        method_runs,
        accuracy.methods,
        labels=(("hadamard+projection", "ours (projection)"),),
    ),
    "table-average": Learned(
        "Figure 3, right",
        "Permuting MNIST, mean of the last ten tasks",
        curves.averages,
        average_runs,
        accuracy.average,
    ),
    "fig-rotating-samples": Computed(
        "Figure 4 (a)", "Rotating streams", samples.draw, samples.rotating
    ),
    "fig-rotating-fashion": Learned(
        "Figure 4 (b)",
        "Rotating Fashion-MNIST",
        curves.by_method,
        rotating_runs("rotating-fashion", *FORMS),
        accuracy.turning,
        UPRIGHT,
    ),
    "fig-rotating-close": Learned(
        "Figure 5, left",
        "Rotating Fashion-MNIST, the forms of superposition close up",
        curves.by_method,
        rotating_runs("rotating-fashion", *FORMS[1:]),
        accuracy.close_up,
        UPRIGHT,
        close_up=True,
    ),
    "fig-rotating-context": Learned(
        "Figure 5, right",
        "Rotating Fashion-MNIST, by how contexts are chosen",
        curves.by_method,
        rotating_runs("rotating-fashion", "standard", "complex", "binary", "fast", "fast-localmix"),
        accuracy.selection,
        UPRIGHT,
        TEN,
    ),
    "fig-icifar-samples": Computed(
        "Figure 6 (a)", "The tasks of iCIFAR", samples.draw, samples.incremental
    ),
    "fig-icifar": Learned(
        "Figure 6 (b)",
        "iCIFAR",
        curves.by_size,
        icifar_runs,
        accuracy.icifar,
        "CIFAR-10, %",
    ),
    "fig-geometry": Computed(
        "Supplementary Figure 1",
        "How contexts move a vector",
        geometry.draw,
        lambda scale, data_dir: geometry.table(),
    ),
    "fig-rotating-mnist": Learned(
        "Supplementary Figure 2",
        "Rotating MNIST",
        curves.by_method,
        rotating_runs("rotating-mnist", *FORMS),
        accuracy.turning,
        UPRIGHT,
    ),
    "fig-permuting-2000": Learned(
        "Supplementary Figure 3",
        "Permuting MNIST in large networks",
        curves.by_method,
        large_runs,
        accuracy.large,
    ),
    "propositions": Computed(
        "Propositions 1 to 3",
        "Crosstalk and gradients, predicted and measured",
        propositions.draw,
        lambda scale, data_dir: propositions.table(scale),
    ),
    "recipe": Learned(
        "not in the paper",
        "Changes to the paper's method, one at a time",
        curves.changes,
        recipe_runs,
        accuracy.recipe,
        MEAN,
    ),
    "icifar-recipe": Learned(
        "not in the paper",
        "Changes to the paper's method in a convolutional network, one at a time",
        curves.changes,
        icifar_recipe_runs,
        accuracy.recipe,
        MEAN,
    ),
    "ours": Learned(
        "not in the paper",
        "Our recipe beside the paper's method",
        curves.changes,
        our_runs,
        accuracy.ours,
        MEAN,
    ),
}
