"""Which task is active, and what each layer uses for it: contexts and private parameters."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Generic, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from superpose.contexts import Context
from superpose.errors import SuperposeError
from superpose.nn.additions import DOWN, UP

P = ParamSpec("P")
R = TypeVar("R")

TaskIds = int | Sequence[int] | Tensor


class Tasks(NamedTuple):
    """The tasks of a batch: one for all of it, or `unique[row[i]]` for its row i."""

    unique: list[int]
    row: Tensor | None  # (B,), or None for one task

    @classmethod
    def of(cls, ids: int | list[int], device: torch.device) -> Tasks:
        """From one number, or one per row.

        >>> Tasks.of([7, 3, 7], torch.device("cpu"))
        Tasks(unique=[7, 3], row=tensor([0, 1, 0]))
        """
        if isinstance(ids, int):
            return cls([ids], None)
        slots = {one: slot for slot, one in enumerate(dict.fromkeys(ids))}
        row = np.array([slots[one] for one in ids])
        return cls(list(slots), torch.from_numpy(row).to(device))


def by_row(tensors: list[Tensor], row: Tensor | None) -> Tensor:
    """The one tensor itself, or a new one that has `tensors[row[i]]` in row i."""
    if row is None:
        return tensors[0]
    stacked = torch.stack(tensors)
    return stacked if len(tensors) == len(row) else stacked.index_select(0, row)


def whole_numbers(task: TaskIds) -> int | list[int]:
    """The task of a layer used by itself, which has no names for tasks."""
    ids = np.asarray(task.tolist() if isinstance(task, Tensor) else task)
    if ids.dtype.kind not in "iu" or ids.ndim > 1:
        raise SuperposeError(
            f"task={task!r}: give one whole number, or a list or tensor with one per row"
        )
    found: int | list[int] = ids.tolist()
    return found


class Selected(NamedTuple):
    """What one layer uses: a context per bound weight, and its private tensors, by name.

    For one task per row the private tensors have a leading dimension of rows, and the contexts are
    stacked. `means` are those of inputs that are centred, as they were when the pass began. Where a
    task has not begun to learn, `closed` is 1, and W gives it nothing.
    """

    contexts: dict[str, Context]
    private: dict[str, Tensor]
    means: dict[str, Tensor] = {}  # noqa: RUF012 (it is never written to)
    gate: tuple[Tensor, ...] = ()

    @property
    def closed(self) -> Tensor | None:
        """1 or 0, or one for each row; None if W is open to all."""
        return self.gate[0] if self.gate else None

    def low_rank(self, name: str) -> tuple[Tensor, Tensor] | None:
        """A (rank, inputs) and B (outputs, rank) of a bound weight, if tasks have such."""
        if name + UP not in self.private:
            return None
        return self.private[name + DOWN], self.private[name + UP]


class Selection(NamedTuple):
    """What every layer uses. All of it is tensors, so it is data to `torch.compile` and `vmap`."""

    row: Tensor | None  # (B,), or (1, T) if the tokens are the rows; () where it is mapped over
    layers: dict[str, Selected]

    @property
    def rows(self) -> int | None:
        """How many rows have a task of their own; None when the batch has one task."""
        return None if self.row is None or self.row.ndim == 0 else self.row.shape[-1]


def of_row(selection: Selection, row: int) -> Selection:
    """What one row of a mixed batch has, as the selection of one task."""
    return Selection(None, tree_map(lambda tensor: tensor[row], selection.layers))


class NotDirect(SuperposeError):  # noqa: N818 (it is a reason, which the model acts on)
    """A layer cannot tell the rows of a mixed batch apart: it is to be computed in another way."""

    def __init__(self, layer: str, why: str) -> None:
        super().__init__(f"layer {layer!r} {why}")


class Stale(SuperposeError):  # noqa: N818 (it is a reason, which the model acts on)
    """The way of a mixed batch is no longer right: it is to be found out again."""


class Watched(dict[str, Selected]):
    """What layers use; those that ask for it are noted."""

    def __init__(self, layers: dict[str, Selected], asked: set[str]) -> None:
        super().__init__(layers)
        self.asked = asked

    def __getitem__(self, path: str) -> Selected:
        self.asked.add(path)
        return super().__getitem__(path)

    def get(self, path: str, default: Any = None) -> Any:
        """The same, for tensors that are read without calling their layer."""
        self.asked.add(path)
        return super().get(path, default)


class _Active(threading.local):
    def __init__(self) -> None:  # runs once in each thread that looks
        self.selection: Selection | None = None
        self.again = False  # activations are computed again, for their gradient
        self.asked: set[str] | None = None  # notes which layers ask what the task has of them


active = _Active()
"""The selection that layers read while a superposed model runs in this thread.

A thread-local, not a ContextVar, because the compiler traces the former; a forward pass never
awaits, so asynchronous tasks cannot see each other's.
"""


outside: ContextVar[Callable[[Any], Selected | None]] = ContextVar(
    "outside", default=lambda layer: None
)
"""What a layer uses that is called while its model does not run, but a task of it was chosen."""


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
