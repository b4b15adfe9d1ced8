"""What a layer's tensor is to a network that uses it itself, in a batch with rows of many tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from superpose.errors import SuperposeError

if TYPE_CHECKING:
    from superpose.nn.layer import Layer


def _named(names: str, *places: Any) -> set[Any]:
    return {getattr(place, name) for name in names.split() for place in places}


PROPERTIES = "device dtype is_cuda is_meta is_quantized is_sparse layout ndim requires_grad shape"
METHODS = "__len__ dim element_size is_complex is_contiguous is_floating_point numel size stride"
LOOKS = {found.__get__ for found in _named(PROPERTIES, Tensor)} | _named(METHODS, Tensor)
"""What tells nothing of a tensor's values."""

ALIGNED = (
    _named("add sub mul div where addcmul lerp maximum minimum", Tensor, torch)
    | _named("add_ sub_ mul_ div_", Tensor)
    | {F.scaled_dot_product_attention}
)
"""What takes tensors whose dimensions meet from the last one on, those of the batch too."""


class Unread(Tensor):
    """A bound weight: it can be looked at, not used.

    No one tensor is that of every row, so what is computed from it would be wrong.
    """

    tensor: str

    @classmethod
    def of(cls, name: str, stored: Tensor) -> Unread:
        """The tensor of this name, which has the shape of `stored`."""
        made = _looking_like(cls, stored)
        made.tensor = name
        return made

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        """Its type, device and shape are known."""
        if function in LOOKS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*arguments, **options or {})
        return _refuse(cls, function, types, arguments, options)


class ByRow(Tensor):
    """A private tensor: it looks like that of one row, and `own` has those of all (rows, *shape).

    What is computed from it, and from what has no rows, is computed for each row. With tensors of
    the batch it can be used where it is known which row is which: where it is expanded to them, in
    sums and products, and as the mask of attention.
    """

    tensor: str
    own: Tensor
    layer: Layer

    @classmethod
    def of(cls, name: str, own: Tensor, layer: Layer) -> Tensor:
        """The layer's tensor of this name; that of a single row is a tensor like any other."""
        if own.shape[0] == 1:
            return own[0]
        made = _looking_like(cls, own[0])
        made.tensor, made.own, made.layer = name, own, layer
        return made

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        """Its type, device and shape are known; the rest depends on the row."""
        with torch._C.DisableTorchFunctionSubclass():
            if function in LOOKS:
                return function(*arguments, **options or {})
            given, structure = tree_flatten((tuple(arguments), options or {}))
            mine = {place: x for place, x in enumerate(given) if isinstance(x, cls)}
            first = next(iter(mine.values()))
            rows = first.own.shape[0]
            plain = [x for x in given if isinstance(x, Tensor) and type(x) is not cls]
            of_batch = [x for x in plain if not without_rows(x, rows)]

            def call(tensors: dict[int, Tensor]) -> Any:
                filled = [tensors.get(place, x) for place, x in enumerate(given)]
                positional, named = tree_unflatten(filled, structure)
                return function(*positional, **named)

            if function is Tensor.expand and first.reaches(given[1:]):
                return first.expanded(given[1:])
            if function is Tensor.repeat and first.reaches(given[1:]):
                return first.repeated(given[1:])
            if not of_batch:
                return first.for_each(call, {place: one.own for place, one in mine.items()})
            ndim = max(x.ndim for x in plain)
            batch = [x for x in of_batch if x.ndim == ndim]
            if function not in ALIGNED or not batch:
                raise _unusable(first)
            dim = first.layer.rows_at(batch[0], rows, features=0)
            return call({place: one.among(ndim, dim) for place, one in mine.items()})

    def for_each(self, call: Callable[[Any], Any], own: dict[int, Tensor]) -> Any:
        """What a function gives for each row."""
        if type(self) is not ByRow:
            raise SuperposeError(
                f"the network computes with {self.tensor!r}, each row's own, before it meets the "
                "batch, which torch.export does not follow: export it with one task for the batch"
            )
        try:
            found = torch.vmap(call, randomness="different")(own)
        except (RuntimeError, ValueError) as error:
            raise _unusable(self) from error
        return tree_map(lambda y: ByRow.of(self.tensor, y, self.layer), found)

    def reaches(self, sizes: list[int]) -> bool:
        """Whether what is expanded, or repeated, to these sizes has the rows of the batch."""
        dim = self.layer.row_dim or 0
        return len(sizes) > dim and sizes[dim] == self.own.shape[0]

    def expanded(self, sizes: list[int]) -> Tensor:
        """To these sizes; the dimension of the rows has its size already."""
        dim = self.layer.row_dim or 0
        return self.among(len(sizes), dim).expand(*sizes[:dim], -1, *sizes[dim + 1 :])

    def repeated(self, sizes: list[int]) -> Tensor:
        """As often as these sizes say; one row after the other, each with its own."""
        dim = self.layer.row_dim or 0
        return self.in_turn(len(sizes), dim).repeat(*sizes[:dim], 1, *sizes[dim + 1 :])

    def among(self, ndim: int, dim: int) -> Tensor:
        """All rows', to meet a tensor of `ndim` dimensions that has the rows in `dim`."""
        shape = (1,) * (ndim - self.ndim) + self.shape
        if len(shape) > ndim or shape[dim] != 1:
            raise _unusable(self)
        return self.in_turn(ndim, dim)

    def in_turn(self, ndim: int, dim: int) -> Tensor:
        """All rows', one after the other in `dim` of `ndim` dimensions."""
        shape = (1,) * (ndim - self.ndim) + self.shape
        return self.own.reshape(-1, *shape).movedim(0, dim).flatten(dim, dim + 1)


def without_rows(x: Tensor, rows: int) -> bool:
    """Whether x has nothing of the rows of a batch, as a parameter of the network has not.

    It may have if they are as many as one of its dimensions, or, of an activation, if they may be
    folded into the first: (rows · tokens, features).
    """
    if isinstance(x, nn.Parameter):
        return True
    folded = x.is_floating_point() and x.ndim and x.shape[0] % rows == 0
    return not is_among(rows, x.shape) and not folded


def is_among(rows: int, sizes: Iterable[int]) -> bool:
    """Whether one of these sizes is the number of rows; a compiled graph may get `in` wrong."""
    return any(size == rows for size in sizes)


def may_be(rows: int, sizes: Iterable[int]) -> bool:
    """The same for sizes of other things, which rows that `torch.export` leaves open are not."""
    return isinstance(rows, int) and is_among(rows, sizes)


def of_all_rows(returned: Any) -> Any:
    """What a network returns, each row's own as a tensor of the batch (rows, …)."""
    if not any(isinstance(value, ByRow) for value in tree_leaves(returned)):
        return returned
    return tree_map(lambda value: value.own if isinstance(value, ByRow) else value, returned)


def _looking_like(kind: Any, tensor: Tensor) -> Any:
    """A tensor of this kind that has the type, device and shape of another."""
    like = tensor.detach()
    if type(like) is Tensor:
        return like.as_subclass(kind)
    return Tensor._make_wrapper_subclass(  # `torch.export` has tensors of a class of its own
        _without_values(kind), like.shape, like.stride(), dtype=like.dtype, device=like.device
    )


@functools.cache
def _without_values(kind: Any) -> Any:
    return type(kind.__name__, (kind,), {"__torch_dispatch__": classmethod(_refuse)})


def _refuse(cls: Any, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
    raise _unusable(next(x for x in tree_leaves((arguments, options)) if isinstance(x, cls)))


def _unusable(read: Unread | ByRow) -> SuperposeError:
    return SuperposeError(
        f"the network uses {read.tensor!r} without calling the layer that it belongs to, so "
        "rows of different tasks cannot each have their own: run it once per task instead"
    )
