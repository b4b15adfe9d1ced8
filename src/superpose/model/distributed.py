"""`agree`: processes that learn together have the same tasks begun, and the same statistics."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model.model import Superposed
from superpose.nn.flats import WRITTEN, is_fresh

BATCHES, SEEN, ROWS = "num_batches_tracked", "_seen", "_input_rows"  # names of counts, or endings


@torch.no_grad()
def agree(model: Any) -> None:
    """Merge what processes know of tasks: which have begun, and statistics by their counts.

    Each process may have run other tasks. Running means of norms, of centred inputs and of inputs
    that tasks are recognised by become the mean over processes, weighted by how many batches (of
    recognition, rows) each has seen since they last agreed. Call it in all processes, before a
    model is tested or saved, and now and then in training; `DistributedDataParallel` averages
    gradients, and leaves statistics alone. Without several processes it does nothing.
    """
    model = getattr(model, "module", model)
    if not isinstance(model, Superposed):
        raise SuperposeError(f"{type(model).__name__} is not superposed: superpose() it first")
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    written = [f for f in model.private_state.flats.values() if f.kind in WRITTEN]
    seen = {task for flats in written for task, flat in flats.own.items() if not is_fresh(flat)}
    each: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(each, (sorted(model.private_state.begun), sorted(seen)))
    model.private_state.begun.update(task for begun, _ in each for task in begun)
    for task in sorted({task for _, tasks in each for task in tasks}):
        now: dict[str, dict[str, Tensor]] = {}
        before: dict[str, dict[str, Tensor]] = {}
        for flats in written:
            last = flats.agreed.get(task, flats.start)
            for path, own in flats.split(flats.own[task]).items():
                now.setdefault(path, {}).update(own)
                before.setdefault(path, {}).update(flats.split(last)[path])
        for path, own in now.items():
            _merge(own, before[path])
        for flats in written:
            flats.agreed[task] = flats.own[task].clone()


def _merge(own: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    """Merge what one layer keeps of a task, by what each process has seen since they agreed."""
    merged = {}
    for name, tensor in own.items():
        count = _count_of(name, own)
        if count == name:
            merged[name] = before[name].double() + _summed(tensor.double() - before[name].double())
            continue
        share = float(not torch.equal(tensor, before[name]))
        if count is not None:
            share = float((own[count].double() - before[count].double()).sum())
        total = float(_summed(torch.tensor([share], dtype=torch.float64)))
        if total:
            merged[name] = _summed(tensor.double() * (share / total))
    for name, tensor in merged.items():
        own[name].copy_(tensor)


def _count_of(name: str, own: dict[str, Tensor]) -> str | None:
    """The tensor that counts what another is made of; itself, if it is a count."""
    weight = name.partition("_input_")[0]
    if weight != name:
        return weight + ROWS
    weight = name.removesuffix("_mean").removesuffix(SEEN)
    if weight + SEEN in own:
        return weight + SEEN
    return BATCHES if BATCHES in own else None


def _summed(tensor: Tensor) -> Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total
