"""Finetuning by distillation: the packed model learns to give what the models gave."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from superpose.model import Superposed, layers, private_state
from superpose.nn.conv import ConvLayer
from superpose.packing.calibration import Rows
from superpose.packing.inputs import quiet_run
from superpose.packing.sources import Sources

LEARNING_RATE = 3e-4


def finetune(
    packed: Superposed,
    sources: Sources,
    calibration: Mapping[Any, Any],
    steps: int,
    batch_size: int,
    seed: int,
    track: Any = iter,
) -> None:
    """Minimise ‖ŷ − y‖² / ‖y‖² over the outputs, rows of all tasks mixed in every batch.

    The models' outputs are computed once, model by model, so no two of them are in memory.
    """
    names = packed.superposition.names
    rows = {name: Rows.of(name, calibration[name]) for name in names}
    wanted = {name: _outputs(sources.open(name), rows[name], batch_size) for name in names}
    energy = {name: outputs.square().mean() for name, outputs in wanted.items()}
    trained = [getattr(layer, name) for layer in layers(packed) for name in layer.contexts]
    trained += private_state(packed).parameters()
    frozen = [parameter for parameter in trained if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    optimiser = torch.optim.Adam(trained, LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    generator = torch.Generator().manual_seed(seed)
    share = max(1, batch_size // len(names))
    # rows of many tasks are convolved each with a kernel of its own: task by task is quicker then
    one_by_one = any(isinstance(layer, ConvLayer) for layer in layers(packed))
    parts: dict[Any, Rows]
    for _ in track(range(steps)):
        drawn = {n: torch.randint(len(rows[n]), (share,), generator=generator) for n in names}
        parts = {name: rows[name][index] for name, index in drawn.items()}
        if not one_by_one:
            parts = {tuple(n for n in names for _ in range(share)): _joined(parts.values())}
        outputs = torch.cat(
            [logits(packed(*x.positional, task=task, **x.named)) for task, x in parts.items()]
        )
        target = torch.cat([wanted[name][index] for name, index in drawn.items()])
        scale = torch.stack([energy[name] for name in names]).repeat_interleave(share)
        errors = (outputs - target).square().flatten(1).mean(1) / scale
        optimiser.zero_grad()
        errors.mean().backward()
        optimiser.step()
        schedule.step()
    optimiser.zero_grad()
    for parameter in frozen:
        parameter.requires_grad_(False)


def logits(output: Any) -> Tensor:
    """The tensor that counts in a network's output: itself, its `logits`, or the first."""
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    return found if isinstance(found, Tensor) else output[0]


def _outputs(net: torch.nn.Module, rows: Rows, batch_size: int) -> Tensor:
    with quiet_run():
        return torch.cat([logits(batch.through(net)) for batch in rows.split(batch_size)])


def _joined(parts: Iterable[Rows]) -> Rows:
    parts = list(parts)
    positional = zip(*(part.positional for part in parts), strict=True)
    return Rows(
        tuple(torch.cat(tensors) for tensors in positional),
        {name: torch.cat([part.named[name] for part in parts]) for name in parts[0].named},
    )
