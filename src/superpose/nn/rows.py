"""Rows of many tasks in a layer: where they are, and products of which each has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from superpose import functional
from superpose.contexts import Context
from superpose.nn.binding import base_matrix
from superpose.nn.centring import centred
from superpose.nn.gate import opened, unmoved
from superpose.nn.quantised import full
from superpose.nn.recomputing import current
from superpose.nn.selection import NotDirect, Selected

if TYPE_CHECKING:
    from superpose.nn.layer import Layer


def product(
    layer: Layer, selected: Selected, name: str, x: Tensor, rows: int, outputs: slice | None = None
) -> Tensor:
    """(W₀ + W C(k) + B A) x, each row by its own; all of the outputs, or some."""
    weight = layer.to_matrix(name, selected.private.get(name, layer.stored(name)))
    context, closed = selected.contexts.get(name), selected.closed

    def some(matrix: Tensor) -> Tensor:
        return matrix if outputs is None else full(matrix)[..., outputs, :]

    if context is None:
        return _multiply(layer, x, some(weight), rows)
    bound = _bind(layer, context, centred(layer, selected, name, x, rows), rows)
    if closed is not None:
        bound = unmoved(bound, spread(layer, closed.unsqueeze(-1), bound, rows))
    y = _multiply(layer, bound, some(weight), rows, layer.guides.get(name))
    if closed is not None:
        y = opened(y, spread(layer, closed.unsqueeze(-1), y, rows))
    low_rank = selected.low_rank(name)
    if low_rank is not None:
        down, up = low_rank
        y = y + _multiply(layer, _multiply(layer, x, down, rows), some(up), rows)
    return y if name not in layer.bases else y + F.linear(x, some(base_matrix(layer, name)))


def _bind(layer: Layer, context: Context, x: Tensor, rows: int) -> Tensor:
    """C x for x of shape (…, M), each row by its own context."""
    dim = rows_at(layer, x, rows)
    if x.ndim == 2:  # stacked contexts take it as it is
        return context.bind(x)
    if x.ndim == 3 and dim == 0:
        return context.by_row().bind(x)
    front = x.movedim(dim, 0)
    flat = front.reshape(rows, -1, x.shape[-1])
    return context.by_row().bind(flat).reshape(front.shape).movedim(0, dim)


def _multiply(
    layer: Layer, x: Tensor, weight: Tensor, rows: int, guide: Tensor | None = None
) -> Tensor:
    """W x with one weight for all rows, or a private one for each (rows, outputs, inputs)."""
    if weight.ndim == 2:
        return functional.linear(x, weight, guide=guide)
    dim = rows_at(layer, x, rows)
    front = x.movedim(dim, 0)
    y = front.reshape(rows, -1, x.shape[-1]) @ weight.mT
    return y.reshape(*front.shape[:-1], -1).movedim(0, dim)


def add_bias(layer: Layer, y: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    """Add to a new y of shape (…, N), in place, a bias (N,), or (rows, N) if it is private."""
    if bias is None:
        return y
    own = spread(layer, bias, y, rows) if bias.ndim > 1 else bias
    return y.add_(own.to(y.dtype))


def spread(layer: Layer, tensor: Tensor, x: Tensor, rows: int) -> Tensor:
    """(rows, *N) viewed so that it broadcasts against x of shape (…, *N)."""
    tail = tensor.shape[1:]
    between = [1] * (x.ndim - 1 - len(tail))
    return tensor.view(rows, *between, *tail).movedim(0, rows_at(layer, x, rows, len(tail)))


def rows_are_tokens(layer: Layer) -> bool:
    """Whether the rows that have a task of their own are the tokens of a single row, (1, T, …)."""
    selection = current(layer)
    row = None if selection is None else selection.row
    return row is not None and row.ndim == 2


def row_dim(layer: Layer) -> int:
    """Where the rows are in this pass: second if they are tokens, else at `batch_dim`."""
    return 1 if rows_are_tokens(layer) else layer.batch_dim or 0


def rows_at(layer: Layer, x: Tensor, rows: int, features: int = 1) -> int:
    """The dimension of x that holds the rows, before features.

    So a batch (rows, features) has them first, even if they are second elsewhere.
    """
    dim = max(0, min(row_dim(layer), x.ndim - 1 - features))
    if x.ndim < 2 or x.shape[dim] != rows:
        raise _elsewhere(layer, x, rows)
    return dim


def check_rows(layer: Layer, x: Tensor, rows: int, dims: int | None = None) -> None:
    """Rows come first in layers of channels; a batch has `dims` dimensions, or two and more."""
    batch = x.ndim >= 2 if dims is None else x.ndim == dims
    if not batch or x.shape[0] != rows:
        raise _elsewhere(layer, x, rows)


def _elsewhere(layer: Layer, x: Tensor, rows: int) -> NotDirect:
    return NotDirect(
        layer.path, f"is given {tuple(x.shape)}, in which it cannot tell the {rows} rows"
    )
