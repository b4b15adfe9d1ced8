"""What superposition costs in time: ratios to plain networks, measured side by side in one run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import superpose as sp
from superpose.lab.networks import MLP, ResNet18

Action = Callable[[], object]

WARM_UP = 3  # untimed rounds


@dataclass(frozen=True)
class Comparison:
    """One row of the table: an action, what it is compared with, and the ratio to keep to."""

    name: str
    against: str
    goal: float
    action: Action
    baseline: Action
    rounds: int


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


def measure(comparison: Comparison, synchronise: Action = lambda: None) -> Measured:
    """Time action and baseline in turns, the order changing every round."""
    actions = {"action": comparison.action, "baseline": comparison.baseline}
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
    ratios = sorted(a / b for a, b in zip(times["action"], times["baseline"], strict=True))
    edge = len(ratios) // 20
    return Measured(
        comparison.name,
        comparison.against,
        comparison.goal,
        median(ratios),
        ratios[edge],
        ratios[-1 - edge],
        1000 * median(times["action"]),
        comparison.rounds,
    )


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


STEP_GOALS = {
    "binary": 1.05,
    "phase": 1.10,
    "permutation": 1.10,
    "hadamard": 1.25,
    "rotation": 2.1,
    "complex": 3.5,
    "onepower": 3.5,
}


def comparisons(device: torch.device, rounds: int) -> Iterator[Comparison]:
    """The rows of the table that are ratios of times in this process."""
    yield from _steps(device, rounds)
    yield from _mixed_batches(device, rounds)


def _mlp() -> nn.Module:
    return MLP(784, 1024, 10)


def _steps(device: torch.device, rounds: int) -> Iterator[Comparison]:
    x, y = _batch(device, 128, 784)
    for family, goal in STEP_GOALS.items():
        model = sp.superpose(_mlp(), family, tasks=64)
        yield Comparison(
            f"training step, MLP 2×1024, {family}",
            "the plain MLP",
            goal,
            training_step(model, x, y, task=3),
            training_step(_mlp(), x, y),
            rounds,
        )
    images, labels = _batch(device, 64, 3, 32, 32)
    net = ResNet18(width=32)
    model = sp.superpose(net, "binary", tasks=5, skip=["stem"])
    yield Comparison(
        "training step, ResNet-18 width 32, binary",
        "the plain ResNet-18",
        1.08,
        training_step(model, images, labels, task=3),
        training_step(net, images, labels),
        max(rounds // 4, 3),
    )


def _mixed_batches(device: torch.device, rounds: int) -> Iterator[Comparison]:
    x, _ = _batch(device, 128, 784)
    tasks = torch.arange(128) % 64
    model = sp.superpose(_mlp(), "binary", tasks=64)
    name = "128 rows of 64 tasks, MLP 2×1024, binary"
    mixed = forward_pass(model, x, task=tasks)
    one = forward_pass(_mlp(), x)
    yield Comparison(name, "128 rows of one plain MLP", 1.10, mixed, one, rounds)
    grouped = _grouped([_mlp().to(device).eval() for _ in range(64)], x, tasks)
    yield Comparison(name, "64 separate MLPs on their rows", 1 / 7, mixed, grouped, rounds)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    tokens, _ = _batch(device, 64, 32, 256)
    superposed = sp.superpose(encoder, "binary", tasks=64)
    name = "64 rows of 64 tasks, transformer encoder 2×256, 32 tokens, binary"
    mixed = forward_pass(superposed, tokens, task=torch.arange(64))
    plain = forward_pass(encoder, tokens)
    some = max(rounds // 2, 3)
    yield Comparison(name, "64 rows of one plain encoder", 1.15, mixed, plain, some)
    unfused = _without_fused_encoder(plain)
    yield Comparison(name, "the same, its fused kernel off", 1.15, mixed, unfused, some)
    tests = torch.randn(50, 200, 784, device=device)
    owners = torch.arange(50).repeat_interleave(200)

    @torch.no_grad()
    def together() -> list[Tensor]:
        rows, whose = tests.flatten(0, 1).split(2000), owners.split(2000)
        return [model(x, task=task) for x, task in zip(rows, whose, strict=True)]

    @torch.no_grad()
    def one_by_one() -> list[Tensor]:
        return [model(x, task=task) for task, x in enumerate(tests)]

    yield Comparison(
        "test sets of 50 tasks, 200 rows each, as mixed batches",
        "50 passes, a task each",
        1.0,
        together,
        one_by_one,
        max(rounds // 2, 3),
    )


def _without_fused_encoder(action: Action) -> Action:
    """PyTorch has a fused kernel for a whole plain encoder layer in evaluation mode."""

    def unfused() -> object:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return action()
        finally:
            torch.backends.mha.set_fastpath_enabled(before)

    return unfused


def _grouped(models: list[nn.Module], x: Tensor, tasks: Tensor) -> Action:
    """What one would write for separate models: each gets its rows."""
    rows = [(model, (tasks == k).nonzero().flatten()) for k, model in enumerate(models)]

    @torch.no_grad()
    def forward() -> Tensor:
        y = x.new_empty(len(x), 10)
        for model, own in rows:
            y[own] = model(x[own])
        return y

    return forward


def _batch(device: torch.device, rows: int, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, *shape, generator=generator)
    return x.to(device), torch.arange(rows, device=device) % 10


def conversion() -> dict[str, float]:
    """superpose() on the paper's ResNet-18 with 1000 tasks: its time, and what it adds."""
    net = ResNet18()
    start = time.perf_counter()
    model = sp.superpose(net, "binary", tasks=1000, private="none", skip=["stem"])
    seconds = time.perf_counter() - start
    sp.contexts.cache.clear()
    model(torch.zeros(1, 3, 32, 32), task=999)
    above = model.cost().stored_bytes - model.cost().plain_bytes + sp.contexts.cache.bytes
    return {"seconds": seconds, "megabytes_above_plain": above / 1e6}


def memory() -> dict[str, float]:
    """Bytes of the MLP with 64 tasks, its contexts in the cache, as a share of 64 MLPs."""
    model = sp.superpose(_mlp(), "binary", tasks=64)
    sp.contexts.cache.clear()
    model(torch.zeros(64, 784), task=torch.arange(64))
    cost = model.cost()
    held = cost.stored_bytes + sp.contexts.cache.bytes
    return {"share_of_64_models": held / cost.separate_bytes}


def first_use(rounds: int = 10) -> dict[str, float]:
    """Milliseconds to derive the contexts of a new task of the MLP 2×1024, by family."""
    found = {}
    for family in sp.contexts.FAMILIES:
        model = sp.superpose(_mlp(), family, tasks=rounds)
        times = []
        for task in range(rounds):
            sp.contexts.cache.clear()
            start = time.perf_counter()
            model.selection(task)
            times.append(time.perf_counter() - start)
        found[family] = 1000 * median(times)
    return found


def imports(rounds: int = 9) -> Measured:
    """`import superpose` beside `import torch`, each in a new process."""

    def process(module: str) -> Action:
        command = [sys.executable, "-c", f"import {module}"]
        return lambda: subprocess.run(command, check=True)

    names = ("import superpose", "import torch")
    return measure(Comparison(*names, 1.1, process("superpose"), process("torch"), rounds))


def growth(device: torch.device, rounds: int, synchronise: Action) -> Iterator[dict[str, Any]]:
    """How cost grows with tasks, width and rows: a point of a curve each, as ratios to plain."""
    x, y = _batch(device, 128, 784)
    for tasks in (1, 10, 100, 1000, 10_000):
        model = sp.superpose(_mlp(), "binary", tasks=tasks)
        owners = torch.arange(128) * max(tasks // 128, 1) % tasks
        mixed, plain = forward_pass(model, x, task=owners), forward_pass(_mlp(), x)
        yield _point("tasks", tasks, "binary", mixed, plain, rounds, synchronise)
    for width in (64, 256, 1024, 4096):
        for family in ("binary", "phase", "hadamard"):
            net = MLP(784, width, 10)
            model = sp.superpose(net, family, tasks=2)
            step, plain = training_step(model, x, y, task=1), training_step(net, x, y)
            fewer = max(rounds * 256 // width, 5)
            yield _point("width", width, family, step, plain, fewer, synchronise)
    model, one = sp.superpose(_mlp(), "binary", tasks=64), _mlp()
    for rows in (1, 8, 64, 512):
        some, _ = _batch(device, rows, 784)
        mixed = forward_pass(model, some, task=torch.arange(rows) % 64)
        plain = forward_pass(one, some)
        yield _point("rows", rows, "binary", mixed, plain, rounds, synchronise)


def _point(
    curve: str,
    at: int,
    family: str,
    action: Action,
    plain: Action,
    rounds: int,
    synchronise: Action,
) -> dict[str, Any]:
    measured = measure(Comparison(curve, "plain", float("inf"), action, plain, rounds), synchronise)
    spread = {"ratio": measured.ratio, "low": measured.low, "high": measured.high}
    return {"curve": curve, "at": at, "family": family, **spread}


def table(result: dict[str, Any]) -> str:
    """The result of `superpose bench` as a Markdown table."""
    lines = ["| what | against | goal | measured | spread |", "|---|---|---|---|---|"]
    for row in result["rows"]:
        ratio, goal = f"{row['ratio']:.2f}", f"{row['goal']:.2f}"
        if not row["met"]:
            ratio = f"{row['ratio']:.3f}" if ratio == goal else ratio
            ratio += " **missed**"
        spread = f"{row['low']:.2f}–{row['high']:.2f}"
        lines.append(f"| {row['name']} | {row['against']} | ≤ {goal} | {ratio} | {spread} |")
    made, share = result["conversion"], result["memory"]["share_of_64_models"]
    above = max(made["megabytes_above_plain"], 0.0)  # below it: norm tensors that are left out
    lines += [
        f"| memory of the MLP with 64 tasks | 64 MLPs | ≤ 1/60 | 1/{1 / share:.0f} | |",
        f"| `superpose()`, ResNet-18, 1000 tasks: seconds | – | < 1 | {made['seconds']:.2f} | |",
        f"| … megabytes above the plain model | – | < 10 | {above:.2f} | |",
    ]
    return "\n".join(lines)
