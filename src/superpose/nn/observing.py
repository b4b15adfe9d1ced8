"""What a task keeps of a layer's inputs while it learns: their mean, and statistics of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.nn.additions import INPUT_SHAPES
from superpose.nn.centring import TASK, move_mean
from superpose.nn.recomputing import recomputing
from superpose.nn.rows import row_dim
from superpose.nn.selection import NotDirect, Selected
from superpose.nn.statistics import Statistics, Usual

if TYPE_CHECKING:
    from superpose.nn.flat import Part
    from superpose.nn.layer import Layer


def keep_statistics(layer: Layer, wanted: Statistics) -> list[Part]:
    """Let each task keep statistics of this layer's inputs, to be recognised by."""
    layer.input_statistics = wanted
    names = ["weight" + ending for ending in INPUT_SHAPES]
    layer.make_private(names)
    return [layer.private[name] for name in names]


def observe(layer: Layer, selected: Selected, inputs: Tensor, rows: int | None) -> None:
    """Take a batch, (…, M), into what its task keeps of the inputs, in training."""
    kept = layer.input_statistics
    if kept is not None and kept.only_told:
        kept = None
    if not layer.training or (layer.centre != TASK and kept is None):
        return
    if rows is not None:
        raise NotDirect(
            layer.path, "keeps statistics of its inputs in training, of one task at a time"
        )
    option = "centre='task'" if layer.centre == TASK else "recognise"
    compiling = torch.compiler.is_compiling()
    if not compiling and torch._C._functorch.is_batchedtensor(inputs):
        raise SuperposeError(
            f"layer {layer.path!r} keeps a running mean of its inputs ({option}), which "
            f"torch.vmap cannot change: call model.eval() first, or leave {option} out"
        )
    if recomputing() or not inputs.numel():
        return
    if kept is not None and "weight_input_rows" in selected.private:  # not so in a mere trial
        own = Usual.of(*(selected.private["weight" + ending] for ending in INPUT_SHAPES))
        own.update(by_rows(layer, inputs.detach()), forget=kept.forget, most=kept.most)
    if layer.centre == TASK:
        move_mean(selected, inputs)


def by_rows(layer: Layer, inputs: Tensor) -> Tensor:
    """A vector (M,) for each row, of inputs (rows, …, M): the mean of all of its places."""
    dim = 0 if inputs.ndim < 3 else row_dim(layer)
    front = inputs.real if inputs.is_complex() else inputs
    return front.movedim(dim, 0).flatten(1, -2).mean(1) if inputs.ndim > 2 else front
