"""Timing: actions beside a baseline, in turns, and their spread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Action = Callable[[], object]
Pair = tuple[Action, Action]

WARM_UP = 3  # untimed rounds


@dataclass(frozen=True)
class Comparison:
    """One row of the table: an action, what it is compared with, and the ratio to keep to.

    `make` gives both, and makes their networks, so that a row that is not wanted costs nothing;
    `needs` is a package that it cannot be measured without.
    """

    name: str
    against: str
    goal: float
    rounds: int
    make: Callable[[], Pair]
    needs: str = ""

    @property
    def lacks(self) -> str:
        """Why it cannot be measured here, if so."""
        if not self.needs or find_spec(self.needs):
            return ""
        return f"{self.name}: {self.needs} is not installed (pip install {self.needs})"


@dataclass(frozen=True)
class Measured:
    """A ratio of times: the median over interleaved rounds and the middle 90 % of them."""

    name: str
    against: str
    goal: float
    ratio: float
    low: float
    high: float
    milliseconds: float
    rounds: int

    @property
    def met(self) -> bool:
        """Whether the goal is kept."""
        return self.ratio <= self.goal

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"met": self.met}


@dataclass(frozen=True)
class Amount:
    """One row of the table that is no ratio of times: what it finds, in which unit, its goal."""

    name: str
    against: str
    unit: Literal["", "s", "MB", "bytes"]
    goal: float
    find: Callable[[], list[float]]

    def as_dict(self) -> dict[str, Any]:
        """Find it, and tell the median and the middle 90 % for JSON."""
        value, low, high = _spread(self.find())
        row = {name: getattr(self, name) for name in ("name", "against", "unit", "goal")}
        return row | {"value": value, "low": low, "high": high, "met": value <= self.goal}


def measure(comparison: Comparison, synchronise: Action = lambda: None) -> Measured:
    """Time action and baseline in turns, the order changing every round."""
    actions = dict(zip(("action", "baseline"), comparison.make(), strict=True))
    for action in [*actions.values()] * WARM_UP:
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(comparison.rounds):
        names = list(actions) if number % 2 else list(actions)[::-1]
        for name in names:
            synchronise()
            start = time.perf_counter()
            actions[name]()
            synchronise()
            times[name].append(time.perf_counter() - start)
    ratios = [a / b for a, b in zip(times["action"], times["baseline"], strict=True)]
    return Measured(
        comparison.name,
        comparison.against,
        comparison.goal,
        *_spread(ratios),
        1000 * median(times["action"]),
        comparison.rounds,
    )


def seconds(action: Action, rounds: int) -> list[float]:
    """How long an action takes, each time that it is done after a first one."""
    times = []
    for _ in range(1 + rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return times[1:]


def _spread(values: list[float]) -> tuple[float, float, float]:
    """The median, and the ends of the middle 90 %."""
    edge = len(values) // 20
    ordered = sorted(values)
    return median(ordered), ordered[edge], ordered[-1 - edge]


def training_step(model: nn.Module, x: Tensor, y: Tensor, **task: Any) -> Action:
    """Forward, backward and RMSprop; gradients stay in place, or the allocator would be timed."""
    model.to(x.device)
    optimiser = torch.optim.RMSprop(model.parameters(), 1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=False)
        F.cross_entropy(model(x, **task), y).backward()
        optimiser.step()

    return step


def forward_pass(model: nn.Module, x: Tensor, **task: Any) -> Action:
    """Without gradients, in evaluation mode."""
    model.to(x.device).eval()

    @torch.no_grad()
    def forward() -> Tensor:
        return model(x, **task)

    return forward
