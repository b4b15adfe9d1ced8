"""Which task is active, and what each layer uses for it: contexts and private parameters."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from superpose.contexts import Context
from superpose.errors import SuperposeError

TaskIds = int | Sequence[int] | Tensor


class Tasks(NamedTuple):
    """The tasks of a batch: one for all of it, or `unique[row[i]]` for its row i."""

    unique: list[int]
    row: Tensor | None  # (B,), or None for one task

    @classmethod
    def of(cls, task: TaskIds, device: torch.device) -> Tasks:
        """From whole numbers: one, or one per row.

        >>> Tasks.of([7, 3, 7], torch.device("cpu"))
        Tasks(unique=[3, 7], row=tensor([1, 0, 1]))
        """
        ids = torch.as_tensor(task)
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.ndim > 1:
            raise SuperposeError(
                f"task={task!r}: give one whole number, or a list or tensor with one per row"
            )
        if ids.ndim == 0:
            return cls([int(ids)], None)
        unique, row = ids.unique(return_inverse=True)
        return cls(unique.tolist(), row.to(device))


class Selected(NamedTuple):
    """What one layer uses: a context per bound weight, and its private tensors, by name.

    For one task per row the private tensors have a leading dimension of rows, and the contexts are
    stacked.
    """

    contexts: dict[str, Context]
    private: dict[str, Tensor]


class Selection(NamedTuple):
    """What every layer uses. All of it is tensors, so it is data to `torch.compile` and `vmap`."""

    tasks: Tensor  # () for one task, (B,) for one task per row
    layers: dict[str, Selected]

    @property
    def rows(self) -> int | None:
        """How many rows have a task of their own; None when the batch has one task."""
        return self.tasks.shape[0] if self.tasks.ndim else None


class _Active(threading.local):
    def __init__(self) -> None:  # runs once in each thread that looks
        self.selection: Selection | None = None


active = _Active()
"""The selection that layers read while a superposed model runs in this thread.

A thread-local, not a ContextVar, because the compiler traces the former; a forward pass never
awaits, so asynchronous tasks cannot see each other's.
"""


@contextmanager
def activated(selection: Selection) -> Iterator[None]:
    """Make the selection the active one."""
    before, active.selection = active.selection, selection
    try:
        yield
    finally:
        active.selection = before
