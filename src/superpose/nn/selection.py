"""Which task is active, and what each layer uses for it: contexts and private parameters."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from superpose.contexts import Context
from superpose.errors import SuperposeError

P = ParamSpec("P")
R = TypeVar("R")

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


class untraced(Generic[P, R]):  # noqa: N801 (it is used as a decorator)
    """A method that `torch.compile` leaves alone, as with `torch.compiler.disable`.

    That decorator imports the compiler, which doubles the time of `import torch`. This one applies
    it when the method is next looked up after something else has imported the compiler, which
    `torch.compile(model)` does before it traces anything.
    """

    waiting: ClassVar[list[untraced[Any, Any]]] = []

    def __init__(self, function: Callable[P, R], recursive: bool = True) -> None:
        self.function, self.recursive = function, recursive

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name
        self.waiting.append(self)

    def __get__(self, instance: object, owner: type) -> Callable[..., R]:
        if "torch._dynamo" in sys.modules:
            while self.waiting:
                self.waiting.pop().settle()
            found: Callable[..., R] = getattr(owner if instance is None else instance, self.name)
            return found
        return cast(Callable[..., R], self.function.__get__(instance, owner))

    def settle(self) -> None:
        """Become `torch.compiler.disable`."""
        disabled = torch.compiler.disable(self.function, recursive=self.recursive)
        setattr(self.owner, self.name, disabled)
