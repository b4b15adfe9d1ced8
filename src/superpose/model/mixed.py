"""Mixed batches: each row run alone under its own task.

- *grouped*: one pass for each task of the batch, the rows put back in order. This is right for
  every network whose rows do not speak to each other, and the default.
- *direct*: one pass, in which every layer computes each row with what its own task has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model.batch import Batch, check_returned, rows_in_returned
from superpose.model.structure import flatten, objects, tensors_of

if TYPE_CHECKING:
    from superpose.model.model import Superposed


def run_mixed(model: Superposed, each: list[int], way: str, inputs: Any, options: Any) -> Any:
    """A batch whose row i has the task each[i]."""
    private = model.private_state
    closed = private.has_base and private.begun.isdisjoint(each)
    alike = closed or len(set(each)) == 1  # tasks that are closed are the base, to the last bit
    if way == "grouped":
        batch = Batch.of(model, len(each), (inputs, options))
        if not alike:
            return grouped(model, each, batch)
    view = model.view_of(each[0] if alike else each)
    try:
        y = model.run(view, *inputs, **options)
    except SuperposeError:
        Batch.of(
            model, len(each), (inputs, options)
        )  # which tells if the rows are of another number
        raise
    rows_first = y.__class__ is Tensor and y.ndim and y.shape[0] == len(each)
    if rows_first and model.superposition.returned == 0:
        return y
    check_returned(model, [y] if isinstance(y, Tensor) else tensors_of(y), len(each))
    return y


def grouped(model: Superposed, each: list[int], batch: Batch) -> Any:
    """One pass for each task, its rows put back where they were."""
    places: dict[int, list[int]] = {}
    for place, task in enumerate(each):
        places.setdefault(task, []).append(place)
    parts: list[list[Tensor]] = []
    dims: list[int | None] = []
    numbers: list[Any] = []
    rebuild: Any = None
    for task, rows in places.items():
        inputs, options = batch.take(torch.tensor(rows))
        y = model.run(model.view_of(task), *inputs, **options)
        tensors, rest, rebuild = flatten((y, objects((inputs, options))))
        told = [leaf for leaf in rest if isinstance(leaf, (bool, int, float, complex, str))]
        if parts and (len(tensors) != len(parts[0]) or repr(told) != repr(numbers)):
            raise SuperposeError(
                "the network returns values that are no tensors, and they are others for other "
                f"tasks, {told[:3]} and {numbers[:3]}: return tensors, or run one task at a time"
            )
        numbers = told
        dims = rows_in_returned(model, y, len(rows))
        dims += [0 if tensor.ndim else None for tensor in tensors[len(dims) :]]  # of caches given
        parts.append(tensors)
    order = torch.tensor([place for rows in places.values() for place in rows]).argsort()
    whole = [
        _together(column, dim, order)
        for column, dim in zip(zip(*parts, strict=True), dims, strict=True)
    ]
    value, left = rebuild(whole)
    return batch.returned(value, left)


def _together(column: tuple[Tensor, ...], dim: int | None, order: Tensor) -> Tensor:
    """The rows of all tasks, in the order of the batch."""
    if dim is None or not column[0].ndim:
        return column[0]
    sizes = {(*t.shape[:dim], *t.shape[dim + 1 :]) for t in column}
    if len(sizes) > 1:
        shapes = " and ".join(str(tuple(t.shape)) for t in column[:2])
        raise SuperposeError(
            f"the rows of different tasks come out in different shapes, {shapes}, so they are no "
            "one batch (pad_packed_sequence pads to the longest row of a task): let the network "
            "return a fixed size, as total_length=… does, or run one task at a time"
        )
    return torch.cat(column, dim).index_select(dim, order.to(column[0].device))
