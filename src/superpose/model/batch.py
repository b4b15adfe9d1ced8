"""What a network is given for rows of different tasks, and where the rows are in it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from superpose.errors import SuperposeError
from superpose.model.structure import Rebuild, flatten, in_tree, objects, write
from superpose.nn.reading import plain_forward

if TYPE_CHECKING:
    from superpose.model.model import Superposed

BatchDim = int | None | Mapping[str, Any]
"""Where the rows are in each tensor; None is first, or, for the name of an argument, nowhere."""

MASKS = dict.fromkeys(("mask", "src_mask", "tgt_mask", "memory_mask", "attn_mask"))
SEQUENCES = ("src", "tgt", "memory", "query", "key", "value", "input")


@dataclass(frozen=True)
class Batch:
    """The tensors that a network is given, and the dimension of each that has the rows."""

    tensors: list[Tensor]
    dims: list[int | None]  # None is for all rows
    rebuild: Rebuild
    rows: int
    objects: list[Any]  # such as caches, which a pass writes to

    @classmethod
    def of(cls, model: Superposed, rows: int, given: Any) -> Batch:
        """Of inputs and options of the network."""
        if any(isinstance(x, PackedSequence) for x in (*given[0], *given[1].values())):
            raise SuperposeError(
                f"there are {rows} tasks, one for each row, and a packed or single sequence, in "
                "which rows are not found: give a padded batch, or one task for all"
            )
        tensors, _, rebuild = flatten(given)
        where = declared(model, given, len(tensors))
        if rows_by_module(model) is not None:
            tensors, where, rebuild = _by_head(model, given, tensors, where, rebuild, rows)
        dims = [_row_dim(model, given, t, d, rows) for t, d in zip(tensors, where, strict=True)]
        if not tensors:
            raise SuperposeError(
                f"there are {rows} tasks, one for each row, but no tensor with rows is found in "
                "what the network is given: give it tensors, or one task for all"
            )
        if rows and all(dim is None for dim in dims):
            raise _no_rows(model, given, rows, tensors[0])
        return cls(tensors, dims, rebuild, rows, objects(given))

    def take(self, index: Tensor) -> tuple[Any, Any]:
        """Inputs and options of some of the rows."""
        inputs, options = self.rebuild(
            [
                self._common(t) if d is None else t.index_select(d, index.to(t.device))
                for t, d in zip(self.tensors, self.dims, strict=True)
            ]
        )
        return inputs, options

    def _common(self, tensor: Tensor) -> Tensor:
        """A tensor that is for all rows; a copy if an object may have it, which passes write to."""
        return tensor.clone() if self.objects else tensor

    def returned(self, value: Any, left: list[Any]) -> Any:
        """What a network returns, with the objects that it was given as it left their copies."""
        pairs = list(zip(self.objects, left, strict=True))
        for own, copied in pairs:
            write(own, copied)
        same = {id(copied): own for own, copied in pairs}
        return tree_map(lambda leaf: same.get(id(leaf), leaf), value) if same else value


def declared(model: Superposed, given: Any, count: int) -> list[int | None]:
    """Where the rows of each tensor are said to be: by the user, or by one of PyTorch's modules."""
    where = model.superposition.options.batch_dim
    named = (
        where if isinstance(where, Mapping) else rows_by_module(model) if where is None else None
    )
    if named is None:
        return [where if isinstance(where, int) else 0] * count
    dims: list[int | None] = []
    for name, value in _arguments(model, given):
        dims += [named.get(name, 0)] * len(flatten(value)[0])
    return dims


def rows_returned(net: nn.Module, where: BatchDim) -> Any:
    """Where the rows are in what a network returns: one dimension, or one for each tensor."""
    if isinstance(where, Mapping):
        return where.get("return", 0)
    if where is not None:
        return where
    module = rows_by_module(net)
    return 0 if module is None else module["return"]


def check_returned(model: Superposed, tensors: list[Tensor], rows: int) -> list[int | None]:
    """The dimension of the rows in each tensor that the network returned for so many rows."""
    said = model.superposition.returned
    several = isinstance(said, (list, tuple))
    if several and model.superposition.options.batch_dim is None:
        said = said[: len(tensors)]  # attention returns its weights if they are asked for
    if several and len(said) != len(tensors):
        raise SuperposeError(
            f"batch_dim={{'return': {said!r}}}: the network returns {len(tensors)} tensors: give "
            "the dimension of the rows for each, None for one without rows"
        )
    dims = list(said) if several else [said] * len(tensors)
    for tensor, dim in zip(tensors, dims, strict=True):
        if dim is None or (dim < tensor.ndim and tensor.shape[dim] == rows):
            continue
        what = (
            "a single number for all rows, such as a loss"
            if not tensor.ndim
            else f"a tensor {tuple(tensor.shape)}"
        )
        raise SuperposeError(
            f"the network returns {what}, in which the {rows} rows of a mixed batch are not found: "
            "compute it from the outputs, which have rows, or say where the rows are in each "
            "tensor that is returned, superpose(…, batch_dim={'return': [0, None, …]})"
        )
    return dims


def rows_in_returned(model: Superposed, value: Any, rows: int) -> list[int | None]:
    """The same for all tensors; those inside caches have rows first, numbers have none."""
    if value.__class__ is Tensor:
        return check_returned(model, [value], rows)
    tensors, told = flatten(value)[0], in_tree(value)
    tree = [tensor for tensor, own in zip(tensors, told, strict=True) if own]
    dims = iter(check_returned(model, tree, rows))
    return [
        next(dims) if own else 0 if tensor.ndim else None
        for tensor, own in zip(tensors, told, strict=True)
    ]


def rows_by_module(module: nn.Module) -> dict[str, Any] | None:
    """Where PyTorch documents the rows of its own sequence modules to be."""
    if isinstance(module, nn.RNNBase):
        own = 0 if module.batch_first else 1
        states = 2 if module.mode == "LSTM" else 1
        return {"input": own, "hx": 1, "return": [own, *[1] * states]}
    inner: Any = module
    if isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)):
        inner = module.layers[0]
    if isinstance(inner, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        inner = inner.self_attn
    if isinstance(inner, (nn.Transformer, nn.MultiheadAttention)):
        own = 0 if inner.batch_first else 1
        attends = isinstance(module, nn.MultiheadAttention)
        return dict.fromkeys(SEQUENCES, own) | MASKS | {"return": [own, 0] if attends else own}
    return None


def rows_of(model: Superposed, inputs: tuple[Any, ...], options: dict[str, Any]) -> Batch:
    """A batch whose number of rows is that of its tensors."""
    tensors, _, _ = flatten((inputs, options))
    where = declared(model, (inputs, options), len(tensors))
    sizes = [
        tensor.shape[min(dim, tensor.ndim - 1)]
        for tensor, dim in zip(tensors, where, strict=True)
        if dim is not None and tensor.ndim
    ]
    if not sizes or not max(sizes):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensor"
        raise SuperposeError(
            f"there are no rows in what was given ({shapes}): give a batch, its rows first"
        )
    return Batch.of(model, max(sizes), (inputs, options))


def _arguments(model: Superposed, given: Any) -> Iterator[tuple[str, Any]]:
    """The arguments of the network's forward by name."""
    inputs, options = given
    names = list(inspect.signature(plain_forward(type(model)._plain)).parameters)[1:]
    last = len(names) - 1  # which may stand for several
    yield from ((names[min(place, last)], value) for place, value in enumerate(inputs))
    yield from options.items()


def _by_head(
    model: Superposed,
    given: Any,
    tensors: list[Tensor],
    where: list[int | None],
    rebuild: Rebuild,
    rows: int,
) -> tuple[list[Tensor], list[int | None], Rebuild]:
    """Masks of PyTorch's attention may be (rows · heads, …): here they are (rows, heads, …)."""
    folded = [dim is None and tensor.ndim == 3 for tensor, dim in zip(tensors, where, strict=True)]
    wrong = next((t for t, own in zip(tensors, folded, strict=True) if own and len(t) % rows), None)
    if wrong is not None:
        raise _no_rows(model, given, rows, wrong)

    def again(new: list[Tensor]) -> Any:
        return rebuild([t.flatten(0, 1) if own else t for t, own in zip(new, folded, strict=True)])

    apart = [
        t.unflatten(0, (rows, -1)) if own else t for t, own in zip(tensors, folded, strict=True)
    ]
    return apart, [0 if own else d for d, own in zip(where, folded, strict=True)], again


def _row_dim(
    model: Superposed, given: Any, tensor: Tensor, dim: int | None, rows: int
) -> int | None:
    """The dimension of the rows; none if the tensor has one row, which is for all of them."""
    if dim is None or not tensor.ndim:
        return None
    dim = min(dim, tensor.ndim - 1)
    if tensor.shape[dim] == rows:
        return dim
    if tensor.shape[dim] != 1:
        raise _no_rows(model, given, rows, tensor)
    return None


def _no_rows(model: Superposed, given: Any, rows: int, tensor: Tensor) -> SuperposeError:
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
