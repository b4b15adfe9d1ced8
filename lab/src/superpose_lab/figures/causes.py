"""Runs that look for the cause where a claim of the paper differs, at each scale."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from superpose_lab.experiments.labels import Wanted
from superpose_lab.experiments.settings import Settings
from superpose_lab.figures import Scale
from superpose_lab.figures.claims import Claim, number
from superpose_lab.figures.learned import AVERAGE
from superpose_lab.figures.table import Row
from superpose_lab.figures.wanted import SEEDS, incremental, permuting, rotating

ZENKE: dict[str, Any] = {
    "tasks": 10,
    "steps": 20 * 234,  # epochs of as many full batches
    "batch_size": 256,
    "optimiser": "adam",
    "lr": 1e-3,
    "private": "per-task",  # biases, which standard, EWC and SI share between tasks
    "evaluate_every": 20 * 234,
}
"""Zenke et al. (2017), Figure 4, by the authors' code; the optimiser's state is kept."""
PENALTIES: dict[str, dict[str, Any]] = {
    "standard": {},
    "si, c = 0.1": {"method": "si", "strength": 0.1},
}
RATES = (2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4)
COMPARED = ("complex", "rotation")
PLAIN: dict[str, dict[str, Any]] = {
    "as in the paper's text": {},
    "three hidden layers": {"hidden": 3},
    "three times the learning rate": {"lr": 3e-4},
    "ten times the learning rate": {"lr": 1e-3},
    "three hidden layers, three times the rate": {"hidden": 3, "lr": 3e-4},
    "Adam": {"optimiser": "adam"},
    "Adam, ten times the learning rate": {"optimiser": "adam", "lr": 1e-3},
    "initial weights doubled": {"gain": 2.0},
    "initial weights halved": {"gain": 0.5},
}
"""Changes that might make the plain network forget more."""
RELEASED: dict[str, dict[str, Any]] = {
    "as in the paper's text": {},
    "three hidden layers": {"hidden": 3},
    "learned contexts": {"learnable": True},
    "three hidden layers, learned contexts": {"hidden": 3, "learnable": True},
}
"""The authors' released settings, where the paper's text says something else."""
OWN_FIRST: dict[str, Any] = {"min_inputs": 145, "stem": "private"}
SGD: dict[str, Any] = {"optimiser": "sgd", "lr": 0.5, "schedule": "cosine"}
PROJECTED: dict[str, Any] = {"method": "hadamard+projection", "schedule": "cosine"}
SCRATCH: dict[str, dict[str, Any]] = {
    "binary": {},
    "binary, 1000 steps": {"steps": 1000, "evaluate_every": 500},
    "binary, 100 steps": {"steps": 100, "evaluate_every": 100},
    "hadamard": {"method": "hadamard"},
    "channel contexts": {"conv": "channel"},
    "norms of each task": {"private": "per-task"},
    "a third of the learning rate": {"lr": 3e-4},
    "cosine schedule": {"schedule": "cosine"},
    "Adam": {"optimiser": "adam"},
    "SGD, cosine": SGD,
    "SGD, cosine, a fifth of that rate": SGD | {"lr": 0.1},
    "smooth labels": {"label_smoothing": 0.1},
    "initial weights three times as large": {"gain": 3.0},
    "a light penalty, SI": {"method": "binary+si", "strength": 0.1},
    "a stem for each task": {"stem": "private"},
    "own first layers: stem and first stage": OWN_FIRST,
    "projection": {"method": "binary+projection"},
    "projection, hadamard, cosine": PROJECTED,
    "projection of strength 3, hadamard, cosine": PROJECTED | {"strength": 3.0},
    "projection, hadamard, cosine, own first layers": PROJECTED | OWN_FIRST,
    "projection, hadamard, SGD, cosine": PROJECTED | SGD,
    "projection, hadamard, SGD, cosine, own first layers": PROJECTED | SGD | OWN_FIRST,
}
"""Causes that may limit binary in a narrow convolutional network: 300 steps a task, or as said."""


def zenke_runs(scale: Scale) -> Iterator[Wanted]:
    """The protocol that the paper's numbers of EWC and SI are from."""
    for label, changes in PENALTIES.items():
        if scale == "paper":
            settings = replace(permuting(scale, "standard", 2000), **ZENKE)
        else:
            settings = permuting(scale, "standard", 48 if scale == "smoke" else 512)
        yield Wanted(replace(settings, **changes), label=label)


def zenke_claims(rows: Sequence[Row]) -> list[Claim]:
    """The mean of all tasks with a penalty, beside the number that the paper quotes."""
    return [
        number(f"{row['label']}: mean of all tasks", AVERAGE[row["method"]], row["mean_all"])
        for row in rows
        if row["method"] != "standard"
    ]


def rate_runs(scale: Scale) -> Iterator[Wanted]:
    """Permuting MNIST: complex and rotation, each at several learning rates."""
    for method in COMPARED:
        yield from _at_rates(scale, permuting(scale, method, 32 if scale == "smoke" else 256))


def turning_rate_runs(scale: Scale) -> Iterator[Wanted]:
    """Rotating Fashion-MNIST: complex and rotation, each at several learning rates."""
    for method in COMPARED:
        yield from _at_rates(scale, rotating(scale, "rotating-fashion", method))


def _at_rates(scale: Scale, paper: Settings) -> Iterator[Wanted]:
    factor = 1 if paper.lr is None else paper.lr / 1e-4
    for rate in RATES:
        lr = float(f"{rate * factor:g}")
        label = f"{paper.method}, {lr:g}"
        yield Wanted(replace(paper, lr=lr), SEEDS if scale == "paper" else 1, label)


def released_runs(scale: Scale) -> Iterator[Wanted]:
    """Large networks: standard and binary, with settings that are not in the paper's text."""
    units = {"smoke": (48, 48), "quick": (512, 512), "paper": (2000, 2048)}[scale]
    for method, size, changed in zip(("standard", "binary"), units, (PLAIN, RELEASED), strict=True):
        for label, changes in changed.items():
            settings = replace(permuting(scale, method, size), **changes)
            several = scale == "paper" and method == "binary" and not changes
            yield Wanted(settings, SEEDS if several else 1, f"{method}: {label}")


def scratch_runs(scale: Scale) -> Iterator[Wanted]:
    """ICIFAR in a narrow network, one change at a time, then several together."""
    steps = {"smoke": None, "quick": 100, "paper": 300}[scale]
    paper = incremental(scale, "binary", 4 if scale == "smoke" else 16, steps)
    if steps is not None:
        paper = replace(paper, evaluate_every=steps)
    for label, changes in SCRATCH.items():
        if scale == "paper" or "steps" not in changes:
            yield Wanted(replace(paper, **changes), label=label)
