"""Finetuning by distillation: the packed model learns to give what the models gave."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from superpose.model import Superposed
from superpose.packing.calibration import Rows, logits
from superpose.packing.sources import Sources
from superpose.packing.weights import bound_weights
from superpose.quiet import quiet_run

LEARNING_RATE = 3e-4


def finetune(
    packed: Superposed,
    sources: Sources,
    calibration: Mapping[Any, Any],
    steps: int,
    batch_size: int,
    track: Any = iter,
) -> None:
    """Minimise ‖ŷ − y‖² / ‖y‖² over the outputs, with rows of all tasks in every batch.

    The packed model is in evaluation mode, so batch statistics stay those of the models. Their
    outputs are computed once, model by model, so no two of them are in memory.
    """
    names = packed.tasks
    rows = {name: Rows.of(name, calibration[name]) for name in names}
    wanted = {name: _outputs(sources.open(name), rows[name], batch_size) for name in names}
    trained = [weight.stored for weight in bound_weights(packed)]
    trained += packed.private_state.parameters()
    frozen = [parameter for parameter in trained if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    optimiser = torch.optim.Adam(trained, LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    generator = torch.Generator().manual_seed(packed.superposition.seed)
    share = max(1, batch_size // len(names))
    for _ in track(range(steps)):
        optimiser.zero_grad()
        for name in names:
            index = torch.randint(len(rows[name]), (share,), generator=generator)
            x, y = rows[name][index], wanted[name]
            given = logits(packed(*x.positional, task=name, **x.named))
            loss = (given - y[index]).square().mean() / y.square().mean()
            (loss / len(names)).backward()
        optimiser.step()
        schedule.step()
    optimiser.zero_grad()
    for parameter in frozen:
        parameter.requires_grad_(False)


def _outputs(net: nn.Module, rows: Rows, batch_size: int) -> Tensor:
    with quiet_run():
        return torch.cat([logits(batch.through(net)) for batch in rows.split(batch_size)])
