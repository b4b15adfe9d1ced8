"""The rows of `benchmarks/speed.py`: superposed networks beside plain ones."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from statistics import median
from typing import Any

import torch
from timing import Action, Comparison, Pair, forward_pass, measure, training_step
from torch import Tensor, nn

import superpose as sp
from superpose_lab.networks import MLP, ResNet18

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
    yield from _bases(device, rounds)
    yield from _mixed_batches(device, rounds)
    yield from _recognition(device, rounds)
    yield from _generation(device, rounds)


def _mlp() -> nn.Module:
    return MLP(784, 1024, 10)


def _resnet() -> nn.Module:
    return ResNet18(width=32)


def _steps(device: torch.device, rounds: int) -> Iterator[Comparison]:
    def of_mlp(family: str) -> Pair:
        x, y = _batch(device, 128, 784)
        model = sp.superpose(_mlp(), family, tasks=64)
        return training_step(model, x, y, task=3), training_step(_mlp(), x, y)

    def of_resnet() -> Pair:
        x, y = _batch(device, 64, 3, 32, 32)
        net = _resnet()
        model = sp.superpose(net, "binary", tasks=5, skip=["stem"])
        return training_step(model, x, y, task=3), training_step(net, x, y)

    for family, goal in STEP_GOALS.items():
        name = f"training step, MLP 2×1024, {family}"
        yield Comparison(name, "the plain MLP", goal, rounds, partial(of_mlp, family))
    name = "training step, ResNet-18 width 32, binary"
    yield Comparison(name, "the plain ResNet-18", 1.08, max(rounds // 4, 3), of_resnet)


def _bases(device: torch.device, rounds: int) -> Iterator[Comparison]:
    """Pretrained networks: a base beside what is superposed, and inputs that are centred."""

    def step(family: str, options: dict[str, Any]) -> Pair:
        x, y = _batch(device, 128, 784)
        model = sp.superpose(_mlp(), family, tasks=64, **options)
        model.begin(3)
        beside = _mlp() if "base" in options else sp.superpose(_mlp(), family, tasks=64)
        return training_step(model, x, y, task=3), training_step(
            beside, x, y, **({} if "base" in options else {"task": 3})
        )

    def mixed() -> Pair:
        x, _ = _batch(device, 128, 784)
        model = sp.superpose(_mlp(), "binary", tasks=64, base=True)
        model.begin(*model.tasks)
        return forward_pass(model, x, task=torch.arange(128) % 64), forward_pass(_mlp(), x)

    for family in ("binary", "hadamard"):
        name = f"training step, MLP 2×1024, {family}, base"
        pair = partial(step, family, {"base": True})
        yield Comparison(name, "the plain MLP", 1.6, rounds, pair)
    name = "training step, MLP 2×1024, binary, centred by task"
    centred = partial(step, "binary", {"centre": "task"})
    yield Comparison(name, "the same, not centred", 1.05, rounds, centred)
    name = "128 rows of 64 tasks, MLP 2×1024, binary, base"
    yield Comparison(name, "128 rows of one plain MLP", 2.1, rounds, mixed)


def _mixed_batches(device: torch.device, rounds: int) -> Iterator[Comparison]:
    some = max(rounds // 2, 3)

    def of_mlp(separate: bool) -> Pair:
        x, _ = _batch(device, 128, 784)
        tasks = torch.arange(128) % 64
        mixed = forward_pass(sp.superpose(_mlp(), "binary", tasks=64), x, task=tasks)
        if not separate:
            return mixed, forward_pass(_mlp(), x)
        return mixed, _grouped([_mlp().to(device).eval() for _ in range(64)], x, tasks)

    def of_encoder(fused: bool) -> Pair:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        tokens, _ = _batch(device, 64, 32, 256)
        superposed = sp.superpose(encoder, "binary", tasks=64)
        plain = forward_pass(encoder, tokens)
        mixed = forward_pass(superposed, tokens, task=torch.arange(64))
        return mixed, plain if fused else _without_fused_encoder(plain)

    def of_resnet(conv: str) -> Pair:
        x, _ = _batch(device, 32, 3, 32, 32)
        model = sp.superpose(_resnet(), "binary", tasks=32, conv=conv)
        return forward_pass(model, x, task=torch.arange(32)), forward_pass(_resnet(), x)

    def of_tests() -> Pair:
        model = sp.superpose(_mlp(), "binary", tasks=64).to(device).eval()
        tests = torch.randn(50, 200, 784, device=device)
        owners = torch.arange(50).repeat_interleave(200)

        @torch.no_grad()
        def together() -> list[Tensor]:
            rows, whose = tests.flatten(0, 1).split(2000), owners.split(2000)
            return [model(x, task=task) for x, task in zip(rows, whose, strict=True)]

        @torch.no_grad()
        def one_by_one() -> list[Tensor]:
            return [model(x, task=task) for task, x in enumerate(tests)]

        return together, one_by_one

    name = "128 rows of 64 tasks, MLP 2×1024, binary"
    one, each = "128 rows of one plain MLP", "64 separate MLPs on their rows"
    yield Comparison(name, one, 1.10, rounds, partial(of_mlp, separate=False))
    yield Comparison(name, each, 1 / 7, rounds, partial(of_mlp, separate=True))
    name = "64 rows of 64 tasks, transformer encoder 2×256, 32 tokens, binary"
    one, unfused = "64 rows of one plain encoder", "the same, its fused kernel off"
    yield Comparison(name, one, 1.15, some, partial(of_encoder, fused=True))
    yield Comparison(name, unfused, 1.15, some, partial(of_encoder, fused=False))
    for conv in ("kernel", "channel"):
        name = f"32 rows of 32 tasks, ResNet-18 width 32, binary, {conv} contexts"
        one = "32 rows of one plain ResNet-18"
        yield Comparison(name, one, 1.25, some, partial(of_resnet, conv))
    name = "test sets of 50 tasks, 200 rows each, as mixed batches"
    yield Comparison(name, "50 passes, a task each", 1.0, some, of_tests)


def _recognition(device: torch.device, rounds: int) -> Iterator[Comparison]:
    """The task of each row found by statistics of inputs, none of them told."""

    def of_mlp() -> Pair:
        model = sp.superpose(_mlp(), "binary", tasks=250, recognise=True).to(device).eval()
        for task in range(250):
            model.remember(torch.randn(8, 784, device=device), task=task)
        x, _ = _batch(device, 128, 784)
        return lambda: model.recognise(x), forward_pass(_mlp(), x)

    name = "finding the tasks of 128 rows among 250, MLP 2×1024"
    yield Comparison(name, "128 rows of one plain MLP", 10.0, max(rounds // 2, 3), of_mlp)


def _generation(device: torch.device, rounds: int) -> Iterator[Comparison]:
    """16 tokens for 16 rows, by a LLaMA of random weights; it needs `transformers`."""

    def of_llama(task: int | Tensor) -> Pair:
        transformers: Any = import_module("transformers")
        config = transformers.LlamaConfig(
            vocab_size=1000,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            eos_token_id=None,  # so that every row is as long
        )
        plain = transformers.LlamaForCausalLM(config).to(device).eval()
        model: Any = sp.superpose(plain, "binary", tasks=16).eval()
        prompt = torch.arange(16 * 8, device=device).view(16, 8)
        options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
        return (
            partial(model.generate, prompt, task=task, **options),
            partial(plain.generate, prompt, **options),
        )

    some, against = max(rounds // 2, 3), "the plain LLaMA"
    for tasks, task, goal in (("16 tasks", torch.arange(16), 1.20), ("one task", 3, 1.05)):
        name = f"generating 16 tokens for 16 rows of {tasks}, LLaMA 4×256, binary"
        yield Comparison(name, against, goal, some, partial(of_llama, task), needs="transformers")


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
            model.view(task)
            times.append(time.perf_counter() - start)
        found[family] = 1000 * median(times)
    return found


def imports(rounds: int = 9) -> Comparison:
    """The library beside `import torch`, each in a new process; names load on first use."""

    def process(code: str) -> Action:
        command = [sys.executable, "-c", code]
        return lambda: subprocess.run(command, check=True)

    def pair() -> Pair:
        names = sorted({*sp.__all__} - {"learning", "serving"})
        return process(f"from superpose import {', '.join(names)}"), process("import torch")

    return Comparison("import superpose", "import torch", 1.1, rounds, pair)


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
    point = Comparison(curve, "plain", float("inf"), rounds, lambda: (action, plain))
    measured = measure(point, synchronise)
    spread = {"ratio": measured.ratio, "low": measured.low, "high": measured.high}
    return {"curve": curve, "at": at, "family": family, **spread}
