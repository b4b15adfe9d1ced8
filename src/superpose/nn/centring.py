"""Centring: the mean of what a layer is given is taken out before it is bound.

It is a task's own running mean μ, so that y = W C(k) (x − μ), which is a shift of the bias by
−W C(k) μ, or the mean of each row's own entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from superpose.nn.additions import MEAN, SEEN, add
from superpose.nn.gate import opened
from superpose.nn.quantised import full
from superpose.nn.selection import Selected

if TYPE_CHECKING:
    from superpose.nn.layer import Layer

TASK, ROWS = "task", "rows"  # what is centred: a task's inputs, or each row of them
MOMENTUM = 0.05  # the least share that a new batch has in a running mean


def add_mean(layer: Layer) -> None:
    """Take each task's own mean out of the input, where that is a shift of the bias."""
    if layer.has_input_mean and "weight" in layer.contexts:
        layer.centre = TASK
        add(layer, "weight", MEAN, SEEN)


def has_mean(layer: Layer) -> bool:
    """Whether some task has seen inputs of this layer: one that is only read is given none."""
    seen = layer.private["weight" + SEEN]
    own = (seen.of(int(task)) for task in seen.group.flats())
    return any(not count.is_meta and bool(count) for count in own)


def centred(
    layer: Layer, selected: Selected, name: str, x: Tensor, rows: int | None = None
) -> Tensor:
    """x less the task's mean of it, or less the mean of each of its rows; x (…, M)."""
    if layer.centre == ROWS:
        return x - x.mean(-1, keepdim=True)
    mean = selected.means.get(name)
    if mean is None:
        return x
    return x - (mean if rows is None else layer.spread(mean, x, rows)).to(x.dtype)


def centred_inputs(layer: Layer, selected: Selected, name: str, x: Tensor) -> Tensor:
    """The same for x (groups, rows, inputs), as the rows of `to_matrix` meet it."""
    if layer.centre == ROWS or name not in selected.means:
        return centred(layer, selected, name, x)
    mean = layer.mean_inputs(selected.means[name])
    return x - (mean if layer.contexts[name].groups == 1 else mean.unsqueeze(1)).to(x.dtype)


def shifted(layer: Layer, selected: Selected, bias: Tensor | None, rows: int | None = None) -> Any:
    """b − W C(k) μ: the bias of a layer whose input is not centred, and gives the same."""
    if "weight" not in selected.means:
        return bias
    response = opened(_mean_response(layer, selected, "weight", rows), selected.closed)
    return -response if bias is None else bias - response.to(bias.dtype)


def _mean_response(layer: Layer, selected: Selected, name: str, rows: int | None) -> Tensor:
    """W C(k) μ (outputs,), or of each row's task (rows, outputs)."""
    mean, context = layer.mean_inputs(selected.means[name]), selected.contexts[name]
    matrix = layer.to_matrix(name, full(layer.stored(name)))
    if layer.contexts[name].groups == 1:
        return layer.summed(context.bind(mean) @ matrix.mT)
    if rows is not None:  # each group of each row
        context = context.map(lambda tensor: tensor.flatten(0, 1))
    each = mean.reshape(-1, 1, mean.shape[-1])
    bound = context.by_row().bind(each).view(*mean.shape[:-1], 1, -1)
    return layer.summed((bound @ matrix.mT).flatten(-3))


@torch.no_grad()
def move_mean(selected: Selected, inputs: Tensor) -> None:
    """Take a batch, (…, M), into the task's running mean of them."""
    mean, seen = (selected.private["weight" + ending] for ending in (MEAN, SEEN))
    seen += 1
    share = seen.reciprocal().clamp_min(MOMENTUM)
    mean.lerp_(inputs.detach().flatten(0, -2).mean(0).to(mean.dtype), share)
