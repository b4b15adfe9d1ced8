"""Mixed batches: each row run alone under its own task, in one of three ways.

- *direct*: one pass, in which every layer binds each row by its own context;
- *mapped*: `torch.vmap` of the pass of one row, over the rows and what their tasks have;
- *grouped*: one pass for each task of the batch, the rows put back in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model.batch import VALUES, Batch
from superpose.model.structure import Rebuild, flatten, objects
from superpose.nn.selection import Selection, Stale

if TYPE_CHECKING:
    from superpose.model.superposed import Superposed

Dims = tuple[int | None, ...]


@dataclass(frozen=True)
class Way:
    """The way of batches of one kind, and where the rows are in each tensor that is returned."""

    name: str
    why: str  # no quicker way is right
    dims: Dims

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


def passed(model: Superposed, selection: Selection, inputs: Any, options: Any) -> tuple[Any, Any]:
    """What a pass returns, and the objects that it was given, which it may have written to."""
    return model.pass_of(selection, inputs, options), objects((inputs, options))


def mapped(model: Superposed, selection: Selection, batch: Batch, dims: Dims) -> Any:
    """The pass of one row, mapped over the rows and over what their tasks have; as `passed`."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # not when superpose is imported

    rebuild: list[Rebuild] = []

    def of_row(layers: Any, *row: Tensor) -> tuple[Tensor, ...]:
        own = iter(row)
        inputs, options = batch.rebuild(
            [next(own).unsqueeze(dims[0]) if dims else batch.common(t) for t, dims in batch.pairs()]
        )
        found, _, again = flatten(passed(model, Selection(None, layers), inputs, options))
        rebuild.append(again)
        _check(found, dims, 1)
        return tuple(t if d is None else t.squeeze(d) for t, d in zip(found, dims, strict=True))

    rows = [(t, dims[0]) for t, dims in batch.pairs() if dims]
    over_rows = torch.vmap(
        of_row,
        in_dims=(0, *(dim for _, dim in rows)),
        out_dims=tuple(dim or 0 for dim in dims),
        randomness="different",
    )
    with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for it
        found = over_rows(selection.layers, *(t for t, _ in rows))
    pairs = zip(found, dims, strict=True)
    return rebuild[-1]([t[0] if dim is None else t for t, dim in pairs])


def grouped(model: Superposed, tasks: list[int], batch: Batch, dims: Dims) -> Any:
    """One pass for each task, its rows put back where they were; as `passed`."""
    places: dict[int, list[int]] = {}
    for place, task in enumerate(tasks):
        places.setdefault(task, []).append(place)
    parts: list[list[Tensor]] = []
    beside: list[Any] = []
    for task, rows in places.items():
        inputs, options = batch.take(torch.tensor(rows))
        before = _versions(inputs, options)
        found, rest, rebuild = flatten(passed(model, model.selection_of(task), inputs, options))
        _check(found, dims, len(rows))
        if not batch.objects and _versions(inputs, options) != before:
            raise SuperposeError(
                "the network writes to its input tensors, and in a grouped mixed batch these are "
                "copies, so that its writes would be lost: run each task by itself"
            )
        parts.append(found)
        beside.append([one for one in rest if isinstance(one, VALUES)])
    if any(values != beside[0] for values in beside):
        raise SuperposeError(
            f"beside its tensors the network returns {beside[0]} for one task and {beside[-1]} for "
            "another, which a grouped mixed batch cannot give: return tensors, or run each task by "
            "itself"
        )
    order = torch.tensor([place for rows in places.values() for place in rows]).argsort()
    whole = []
    for tensors, dim in zip(zip(*parts, strict=True), dims, strict=True):
        index = order.to(tensors[0].device)
        joined = tensors[0] if dim is None else torch.cat(tensors, dim).index_select(dim, index)
        whole.append(joined)
    return rebuild(whole)


def _versions(inputs: Any, options: Any) -> list[int]:
    """How often each tensor that is given was written to."""
    tensors = flatten((inputs, options))[0]
    return [tensor._version for tensor in tensors if not tensor.is_inference()]


def _check(found: list[Tensor], dims: Dims, rows: int) -> None:
    """That the network returns what it returned when the way was found out."""
    if len(found) != len(dims) or any(
        dim is not None and (dim >= tensor.ndim or tensor.shape[dim] != rows)
        for tensor, dim in zip(found, dims, strict=True)
    ):
        raise Stale("the network returns other tensors than it did for batches of this kind")
