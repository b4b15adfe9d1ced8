"""The runs that figures compare, at each scale: sizes, forms, changes to the paper's method."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from superpose_lab.experiments.labels import Wanted
from superpose_lab.experiments.settings import ExperimentName, Settings
from superpose_lab.figures import Scale

FORMS = ("standard", "binary", "complex", "onepower", "rotation", "hadamard", "phase")
SEEDS = 3
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
    "ours with binary": OURS | {"method": "binary+projection"},
    "ours: hadamard, projection, cosine schedule": OURS,
    "ours, larger steps and smooth labels": LARGER_STEPS,
    "a network for each task": {"method": "separate"},
}
"""Changes that might make the paper's method better or worse."""
OWN_NORMS: dict[str, Any] = {"method": "hadamard", "private": "per-task"}
ICIFAR_CHANGES: dict[str, dict[str, Any]] = {
    "binary, as in the paper": {},
    "half as wide": {"width": 8},
    "twice as wide": {"width": 32},
    "a stem for each task": {"stem": "private"},
    "a third of the learning rate": {"lr": 3e-4},
    "cosine schedule": {"schedule": "cosine"},
    "hadamard": {"method": "hadamard"},
    "hadamard, norms of each task": OWN_NORMS,
    "the same, centred by task": OWN_NORMS | {"centre": "task"},
    "the same, centred by rows": OWN_NORMS | {"centre": "rows"},
    "ours: binary, projection": {"method": "binary+projection"},
}
"""Such changes in a convolutional network."""
ICIFAR_OURS: dict[str, Any] = {
    "method": "hadamard+projection",
    "private": "per-task",
    "rank": 2,
    "schedule": "cosine",
}
RECIPES: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "ours": OURS,
    "ours, larger steps and smooth labels": LARGER_STEPS,
}

ROWS = {"centre": "rows", "evaluate_every": 1000}
LOW_RANK = OURS | ROWS | {"rank_lr": 3e-3}
WIDE = LARGER_STEPS | ROWS | {"rank_lr": 3e-3}
OWN: dict[tuple[int, int], dict[str, dict[str, Any]]] = {
    (256, 20): {
        "hadamard": {"method": "hadamard"},
        "hadamard, centred by rows": ROWS | {"method": "hadamard"},
        "hadamard, centred by task, biases": {
            "method": "hadamard",
            "private": "per-task",
            "centre": "task",
            "evaluate_every": 1000,
        },
        "hadamard, centred by rows, rank 2": ROWS
        | {"method": "hadamard", "rank": 2, "rank_lr": 3e-3},
        "hadamard, cosine schedule, centred by rows, rank 2": COSINE
        | ROWS
        | {"method": "hadamard", "rank": 2, "rank_lr": 3e-3},
        "hadamard, cosine schedule, centred by rows, rank 4": COSINE
        | ROWS
        | {"method": "hadamard", "rank": 4, "rank_lr": 3e-3},
        "ours": OURS,
        "ours, centred by rows, rank 2": LOW_RANK | {"rank": 2},
    },
    (256, 50): {
        "ours": OURS,
        "ours, centred by rows, rank 2": LOW_RANK | {"rank": 2},
        "ours, centred by rows, rank 4": LOW_RANK | {"rank": 4},
    },
    (2048, 50): {
        "ours, larger steps and smooth labels": LARGER_STEPS,
        "ours, as above, centred by rows, rank 2": WIDE | {"rank": 2},
    },
}
"""By units and the number of tasks: private numbers of each task."""


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
        for method in ("binary", "standard"):
            several = units <= 512 or (units, method) == (2048, "binary")  # a claim is about it
            seeds = SEEDS if scale == "paper" and several else 1
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


def own_runs(scale: Scale) -> Iterator[Wanted]:
    """Permuting MNIST, with more and more private numbers."""
    for (units, tasks), changes in OWN.items():
        plain = permuting(scale, "hadamard", 32 if scale == "smoke" else units)
        if scale == "paper":
            plain = replace(plain, tasks=tasks)
        elif (units, tasks) != min(OWN):
            continue
        for label, change in changes.items():
            known = change if scale == "paper" else change | {"evaluate_every": plain.steps}
            where = f"{plain.units} units, {plain.tasks} tasks"
            yield Wanted(replace(plain, **known), label=f"{where}: {label}")


def large_runs(scale: Scale) -> Iterator[Wanted]:
    """The superposed networks of the table, and standard, at its full size."""
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
    """Narrow networks first, and fewer steps than the paper's, which need a GPU."""
    variants: dict[Scale, tuple[tuple[int, int | None, int], ...]] = {
        "smoke": ((4, None, 1),),
        "quick": ((8, 100, 1),),
        "paper": ((16, 1000, SEEDS), (32, 1000, 1), (64, 300, 1)),
    }
    for width, steps, seeds in variants[scale]:
        for method in ("binary", "multihead", "standard"):
            yield Wanted(incremental(scale, method, width, steps), seeds)
    for width, steps, seeds in dict.fromkeys((variants[scale][0], variants[scale][-1])):
        yield Wanted(incremental(scale, "binary+projection", width, steps), seeds)


def icifar_our_runs(scale: Scale) -> Iterator[Wanted]:
    """The paper's method and ours: small layers private, a low rank, projection."""
    variants: dict[Scale, tuple[tuple[int, int | None], ...]] = {
        "smoke": ((4, None),),
        "quick": ((8, 100),),
        "paper": ((32, 1000),),
    }
    for width, steps in variants[scale]:
        paper = incremental(scale, "binary", width, steps)
        first_stage = 9 * width  # inputs of its convolutions, 3 × 3
        ours = replace(
            paper,
            **ICIFAR_OURS,
            min_inputs=first_stage + 1,
            evaluate_every=steps or paper.evaluate_every,
        )
        yield Wanted(paper, label=f"width {width}: as in the paper")
        yield Wanted(ours, label=f"width {width}: ours, layers < {first_stage + 1} private")


def icifar_recipe_runs(scale: Scale) -> Iterator[Wanted]:
    """One change at a time, in a narrow network and few steps."""
    steps = {"smoke": None, "quick": 100, "paper": 300}[scale]
    paper = incremental(scale, "binary", 16, steps)
    paper = replace(paper, tasks=paper.tasks or 3)
    for label, changes in ICIFAR_CHANGES.items():
        yield Wanted(replace(paper, **changes), label=label)
