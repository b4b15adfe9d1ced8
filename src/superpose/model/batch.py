"""What a network is given for rows of different tasks, and where the rows are in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from superpose.errors import SuperposeError
from superpose.model.structure import Rebuild, flatten, objects, write
from superpose.nn.private import modules

if TYPE_CHECKING:
    from superpose.model.superposed import Superposed

BatchDim = int | None | Mapping[str, int | None]
"""Where the rows are in each tensor; None is first, or, for the name of an argument, nowhere."""

MASKS = dict.fromkeys(("mask", "src_mask", "tgt_mask", "memory_mask", "attn_mask"))
VALUES = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, Enum)
SEQUENCES = ("src", "tgt", "memory", "query", "key", "value", "input")


@dataclass(frozen=True)
class Batch:
    """The tensors that a network is given, and the dimensions of each that hold the rows.

    Tensors without are for all rows. `kind` is the same for batches that differ in size alone.
    """

    tensors: list[Tensor]
    dims: list[tuple[int, ...]]  # a mask of tokens has two
    rebuild: Rebuild
    rows: int
    tokens: bool  # whether the rows are the tokens of a single row, (1, tokens)
    objects: list[Any]  # such as caches, which a pass writes to
    kind: Any

    @classmethod
    def of(cls, model: Superposed, rows: int, tokens: bool, given: Any) -> Batch:
        """Of inputs and options of the network, and the number of rows."""
        tensors, rest, rebuild = flatten(given)
        refused = partial(_without_rows, model, given, rows)
        if tokens:
            dims = [_of_tokens(tensor, rows) for tensor in tensors]
        else:
            where = declared(model, given, len(tensors))
            if _of_module(model) is not None:
                tensors, where, rebuild = _by_head(tensors, where, rebuild, rows, refused)
            dims = [_of_rows(t, dim, rows, refused) for t, dim in zip(tensors, where, strict=True)]
        if not tensors:
            raise SuperposeError(
                f"there are {rows} tasks, one for each row, but no tensor with rows is found in "
                "what the network is given: give it tensors, or one task for all"
            )
        if not any(dims):
            raise refused(tensors[0])
        single = [tuple(bool(size == 1) for size in tensor.shape) for tensor in tensors]
        shapes = tuple(zip(dims, (t.dtype for t in tensors), single, strict=True))
        plain = tuple(x if isinstance(x, VALUES) else type(x) for x in rest)
        network = modules(model)
        training = tuple(module.training for module in network)  # of norms with statistics
        kind = (tokens, training, shapes, plain, _numbers(network, tensors))
        return cls(tensors, dims, rebuild, rows, tokens, objects(given), kind)

    def pairs(self) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
        """Each tensor, and where its rows are."""
        return zip(self.tensors, self.dims, strict=True)

    @property
    def coincides(self) -> tuple[tuple[bool, ...], ...]:
        """Which sizes happen to be the number of rows, and could be taken for it."""
        return tuple(tuple(size == self.rows for size in t.shape) for t in self.tensors)

    def take(self, index: Tensor) -> tuple[Any, Any]:
        """Inputs and options of some of the rows."""
        inputs, options = self.rebuild(
            [_taken(t, dims, index) if dims else self.common(t) for t, dims in self.pairs()]
        )
        return inputs, options

    def common(self, tensor: Tensor) -> Tensor:
        """A tensor that is for all rows; a copy if an object may have it, which passes write to."""
        return tensor.clone() if self.objects else tensor

    def returned(self, value: Any, left: list[Any]) -> Any:
        """What a network returns, with the objects that it was given as it left their copies."""
        pairs = list(zip(self.objects, left, strict=True))
        for own, copied in pairs:
            write(own, copied)
        same = {id(copied): own for own, copied in pairs}
        return tree_map(lambda leaf: same.get(id(leaf), leaf), value)

    def some(self, index: Tensor, generator: np.random.Generator) -> Batch:
        """A batch of a few rows, with noise for numbers that are all the same, or not finite."""

        def varied(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point() or not tensor.numel():
                return tensor
            if tensor.isfinite().all() and tensor.amin() != tensor.amax():
                return tensor
            noise = torch.tensor(generator.standard_normal(tensor.shape))
            return noise.to(tensor.device, tensor.dtype)

        few = [varied(_taken(t, dims, index)) if dims else t for t, dims in self.pairs()]
        return replace(self, tensors=few, rows=len(index))


def declared(model: Superposed, given: Any, count: int) -> list[int | None]:
    """Where the rows of each tensor are said to be: by the user, or by one of PyTorch's modules."""
    where = model.superposition.conversion.batch_dim
    named = where if isinstance(where, Mapping) else _of_module(model) if where is None else None
    if named is None:
        return [where if isinstance(where, int) else 0] * count
    dims: list[int | None] = []
    for name, value in _arguments(model, given):
        dims += [named.get(name, 0)] * len(flatten(value)[0])
    return dims


def _numbers(network: list[nn.Module], tensors: list[Tensor]) -> tuple[Any, ...]:
    """The types of number that a network computes in: its parameters', and those of autocast."""
    own = {t.dtype for module in network for t in module._parameters.values() if t is not None}
    devices = sorted({tensor.device.type for tensor in tensors} - {"meta"})
    autocast = [torch.get_autocast_dtype(d) for d in devices if torch.is_autocast_enabled(d)]
    return frozenset(own), tuple(autocast)


def _arguments(model: Superposed, given: Any) -> list[tuple[str, Any]]:
    """The arguments of the network's forward by name."""
    inputs, options = given
    names = list(inspect.signature(type(model)._plain.forward).parameters)[1:]
    last = len(names) - 1  # which may stand for several
    pairs = [(names[min(place, last)], value) for place, value in enumerate(inputs)]
    return [*pairs, *options.items()]


def _of_module(module: nn.Module) -> Mapping[str, int | None] | None:
    """What PyTorch documents of its own sequence modules."""
    if isinstance(module, nn.RNNBase):
        return {"input": 0 if module.batch_first else 1, "hx": 1}
    inner: Any = module
    if isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)):
        inner = module.layers[0]
    if isinstance(inner, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        inner = inner.self_attn
    if isinstance(inner, (nn.Transformer, nn.MultiheadAttention)):
        return dict.fromkeys(SEQUENCES, 0 if inner.batch_first else 1) | MASKS
    return None


def _by_head(
    tensors: list[Tensor],
    where: list[int | None],
    rebuild: Rebuild,
    rows: int,
    refused: Callable[[Tensor], SuperposeError],
) -> tuple[list[Tensor], list[int | None], Rebuild]:
    """Masks of PyTorch's attention may be (rows · heads, …): here they are (rows, heads, …)."""
    folded = [dim is None and tensor.ndim == 3 for tensor, dim in zip(tensors, where, strict=True)]
    wrong = next((t for t, own in zip(tensors, folded, strict=True) if own and len(t) % rows), None)
    if wrong is not None:
        raise refused(wrong)

    def again(new: list[Tensor]) -> Any:
        return rebuild([t.flatten(0, 1) if own else t for t, own in zip(new, folded, strict=True)])

    apart = [
        t.unflatten(0, (rows, -1)) if own else t for t, own in zip(tensors, folded, strict=True)
    ]
    return apart, [0 if own else d for d, own in zip(where, folded, strict=True)], again


def _of_rows(
    tensor: Tensor, dim: int | None, rows: int, refused: Callable[[Tensor], SuperposeError]
) -> tuple[int, ...]:
    """The dimension of the rows; none if the tensor has one row, which is for all of them."""
    if dim is None or not tensor.ndim:
        return ()
    dim = min(dim, tensor.ndim - 1)
    if tensor.shape[dim] == rows:
        return (dim,)
    if tensor.shape[dim] != 1:
        raise refused(tensor)
    return ()


def _of_tokens(tensor: Tensor, tokens: int) -> tuple[int, ...]:
    """The dimensions of the tokens; if they are not, passes differ, which is seen."""
    return tuple(dim for dim, size in enumerate(tensor.shape) if size == tokens)


def _taken(tensor: Tensor, dims: tuple[int, ...], index: Tensor) -> Tensor:
    for dim in dims:
        tensor = tensor.index_select(dim, index.to(tensor.device))
    return tensor


def _without_rows(model: Superposed, given: Any, rows: int, tensor: Tensor) -> SuperposeError:
    holding = (
        name
        for name, value in _arguments(model, given)
        if any(one is tensor for one in flatten(value)[0])
    )
    name = next(holding, "input")
    return SuperposeError(
        f"there are {rows} tasks, one for each row, but argument {name!r} has the shape "
        f"{tuple(tensor.shape)}: give a task for each row, or one for all; if the rows of {name!r} "
        f"are not in its first dimension, superpose with batch_dim={{{name!r}: 1}}, or "
        f"{{{name!r}: None}} if it has no rows"
    )
