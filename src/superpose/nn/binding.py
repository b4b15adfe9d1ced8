"""The weights of a layer as a task has them: W₀ + W C(k) + B A, as far as there are these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from superpose.contexts import Context
from superpose.nn.centring import ROWS
from superpose.nn.gate import opened
from superpose.nn.quantised import full
from superpose.nn.selection import Selected, Tasks

if TYPE_CHECKING:
    from superpose.nn.layer import Layer


def context_of(layer: Layer, name: str, change: Tensor | None, tasks: Tasks) -> Context:
    """C(k), of the numbers that were drawn for it, or of those and what was learned."""
    own, like = layer.contexts[name], layer.real_like(name)
    if change is not None:
        drawn = own.drawn(tasks.unique, tasks.row, like.device, like.dtype)
        return own.make(drawn + change)
    if tasks.row is None:
        return own.fixed(tasks.unique[0], like.device, like.dtype)
    return own.fixed_by_row(tasks.unique, tasks.row, like.device, like.dtype)


def grouped(layer: Layer, name: str, context: Context) -> Context:
    """The context, ready for a bound weight as `to_matrix` gives it."""
    return context if layer.contexts[name].groups == 1 else context.by_row()


def bound_weight(layer: Layer, selected: Selected, name: str, rows: int | None = None) -> Tensor:
    """W₀ + W C(k) + B A; with rows, one for each, (rows, *W.shape)."""
    own = layer.from_matrix(name, _bound_matrix(layer, selected, name, rows))
    base = layer.bases.get(name)
    return own if base is None else full(base) + own


def _bound_matrix(layer: Layer, selected: Selected, name: str, rows: int | None) -> Tensor:
    """W C(k) + B A as `to_matrix` has it."""
    matrix = opened(_bind(layer, selected, name, rows), selected.closed)
    low_rank = selected.low_rank(name)
    return matrix if low_rank is None else matrix + low_rank[1] @ low_rank[0]


def _bind(layer: Layer, selected: Selected, name: str, rows: int | None) -> Tensor:
    """W C(k), less the mean of each of its rows if it is the rows that are centred."""
    weight = full(selected.private.get(name, layer.stored(name)))
    matrix, context = layer.to_matrix(name, weight), selected.contexts[name]
    if rows is None:
        bound = grouped(layer, name, context).bind_weight(matrix)
    else:
        if weight.ndim == layer.stored(name).ndim:
            matrix = matrix.expand(rows, *matrix.shape)
        if layer.contexts[name].groups > 1:  # each group of each row
            repeated = matrix.flatten(0, 1)
            context = context.map(lambda tensor: tensor.flatten(0, 1))
        else:
            repeated = matrix.flatten(1, -2)
        bound = context.by_row().bind_weight(repeated).view(matrix.shape)
    return bound - bound.mean(-1, keepdim=True) if layer.centre == ROWS else bound


def base_matrix(layer: Layer, name: str) -> Tensor:
    """W₀ for a product; in full in training, as a quantised one may round x: no gradient."""
    base = layer.bases[name]
    return layer.to_matrix(name, full(base) if layer.training else base)


def with_base(layer: Layer) -> dict[str, Tensor]:
    """The weights that have a base, as they stand: W₀ + W."""
    return {name: full(base) + full(layer.stored(name)) for name, base in layer.bases.items()}
