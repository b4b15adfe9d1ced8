"""Optimisers and learning-rate schedules by name."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from superpose.errors import SuperposeError
from superpose.learning.guards import Guard

Optimiser = str | Callable[[Iterable[Any]], torch.optim.Optimizer]  # of parameters, or groups

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def _warm_cosine(done: float) -> float:
    return 0.1 + 9 * done if done < 0.1 else _cosine((done - 0.1) / 0.9)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": _cosine,
    "warm-cosine": _warm_cosine,
    "linear": lambda done: 1 - done,
}
"""What the learning rate is multiplied with, by how much of the task is done (0 ≤ done < 1)."""


def make_optimiser(
    wanted: Optimiser, guard: Guard, lr: float, rank_lr: float | None = None
) -> torch.optim.Optimizer:
    """The optimiser of a name with PyTorch's defaults, or what a callable makes.

    A callable is given parameters to group as it likes; low-rank parts are apart if they have a
    rate.

    >>> guard = Guard(torch.nn.Linear(2, 2))
    >>> make_optimiser("rmsprop", guard, 1e-4).defaults["alpha"]
    0.99
    """
    groups = guard.parameter_groups(lr=lr, rank_lr=rank_lr, pace=1.0)
    if isinstance(wanted, str):
        if not 0 < lr < math.inf:
            raise SuperposeError(f"lr={lr}: a learning rate is a number above 0")
        return named("optimiser", OPTIMISERS, wanted)(groups, lr=lr)
    low_rank = [] if rank_lr is None else [groups.pop()]
    rest = [parameter for group in groups for parameter in group["params"]]
    return wanted([{"params": rest}, *low_rank] if low_rank else rest)


def named(what: str, choices: dict[str, Any], name: str) -> Any:
    """Look a name up, or say which there are."""
    if name not in choices:
        raise SuperposeError(f"unknown {what} {name!r}: use one of {', '.join(choices)}")
    return choices[name]
