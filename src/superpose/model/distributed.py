"""`agree`: processes that learn together have the same tasks begun, and the same statistics."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model.model import Superposed
from superpose.nn.private import WRITTEN, Flats

COUNTS = ("num_batches_tracked", "_seen", "_input_rows")  # endings of the names of counts


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
    begun: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(begun, sorted(model.private_state.begun))
    model.private_state.begun.update(task for own in begun for task in own)
    written = [f for f in model.private_state.flats.values() if f.kind in WRITTEN]
    counts = {task: _counts(written, task) for task in (written[0].own if written else ())}
    before = model.__dict__.setdefault("_agreed", {})
    for task, now in counts.items():
        new = {path: count - before.get((task, path), 0.0) for path, count in now.items()}
        for flats in written:
            _merge(flats, task, new)
        after = _counts(written, task)
        before.update({(task, path): count for path, count in after.items()})


def _counts(written: list[Flats], task: str) -> dict[str, float]:
    """How much each layer has seen of a task."""
    found: dict[str, float] = {}
    for flats in written:
        for path, own in flats.split(flats.own[task]).items():
            for name, tensor in own.items():
                if name.endswith(COUNTS):
                    found[path] = max(found.get(path, 0.0), float(tensor.sum()))
    return found


def _merge(flats: Flats, task: str, new: dict[str, float]) -> None:
    """The mean over processes, weighted by what each has seen; counts are added."""
    for path, own in flats.split(flats.own[task]).items():
        share = torch.tensor([new.get(path, 0.0)], dtype=torch.float64)
        total = share.clone()
        dist.all_reduce(total)
        if not total:
            continue
        for name, tensor in own.items():
            if name.endswith(COUNTS):
                tensor.copy_(
                    _summed(tensor.double() - _common(tensor, share)) + _common(tensor, share)
                )
            else:
                tensor.copy_(_summed(tensor.double() * float(share / total)))


def _common(count: Tensor, share: Tensor) -> Tensor:
    """Of a count, what all processes had when they last agreed."""
    if not count.numel() or not float(count.sum()):
        return count.double()
    return count.double() * (1 - float(share) / float(count.sum()))


def _summed(tensor: Tensor) -> Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total
