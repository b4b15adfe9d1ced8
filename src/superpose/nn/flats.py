"""Flat tensors: all numbers of a type that a task has for itself, of which layers see views.

A task that has learned nothing shares the memory of the start, copy on write, so it costs little
more than its name, and the number of tensors grows with the tasks, not with tasks × layers. Each
task's flat tensor is a parameter of its own: an optimiser that was made once trains every task, and
does not move those that were not in the batch, whose parameters have no gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from superpose.nn.names import joined

TRAINED, RANK, FROZEN, STATISTICS, RECOGNITION = (
    "trained",
    "rank",
    "frozen",
    "statistics",
    "recognition",
)
WRITTEN = (STATISTICS, RECOGNITION)  # by layers, not by an optimiser


class Slot(NamedTuple):
    """One private tensor of a layer: its flat tensor, and what tasks start from.

    `added` says that the plain layer has no such tensor.
    """

    path: str
    name: str
    flat: str
    start: Tensor
    added: bool = False

    @property
    def full_name(self) -> str:
        """Its name in the plain network."""
        return joined(self.path, self.name)


class Flats(nn.Module):
    """The flat tensors of all tasks, of one kind and type of number."""

    start: Tensor

    def __init__(self, kind: str, slots: list[Slot], begun: set[int] | None) -> None:
        super().__init__()
        self.kind, self.begun = kind, begun if kind != RECOGNITION else None
        self.slots = [slot._replace(start=slot.start.new_empty(0)) for slot in slots]
        self.places = [(slot.path, slot.name, slot.start.shape) for slot in slots]
        self.sizes = [slot.start.numel() for slot in slots]
        self.start = torch.cat([slot.start.detach().reshape(-1) for slot in slots])
        self.agreed: dict[str, Tensor] = {}  # statistics as processes last agreed on them

    @property
    def own(self) -> dict[str, Any]:
        """The flat tensor of each task, by its number."""
        kept: Any = self._buffers if self.kind in WRITTEN else self._parameters
        return kept

    @property
    def sharded(self) -> bool:
        """Whether each process has a part of every tensor."""
        return any(map(is_sharded, islice(self.own.values(), 1)))  # all of them, or none

    def put(self, task: str, flat: Tensor, learns: bool = True) -> None:
        """Make this the task's tensor; an optimiser that knows its parameter goes on knowing it."""
        known = self.own.get(task)
        if known is not None and torch._has_compatible_shallow_copy_type(known, flat):
            known.data = flat
        elif self.kind in WRITTEN:
            self.own[task] = flat
        else:
            learns = known.requires_grad if known is not None else learns and self.kind != FROZEN
            self.own[task] = nn.Parameter(flat, learns)

    def split(self, flat: Tensor) -> dict[str, dict[str, Tensor]]:
        """The tensors of all layers, by path and name, from (…, numbers)."""
        found: dict[str, dict[str, Tensor]] = {}
        lead = flat.shape[:-1]
        parts = flat.split(self.sizes, -1)
        for (path, name, shape), part in zip(self.places, parts, strict=True):
            found.setdefault(path, {})[name] = part.view(lead + shape)
        return found

    def columns(self) -> list[tuple[str, int]]:
        """The names and sizes of the tensors in a flat one."""
        return [(slot.full_name, n) for slot, n in zip(self.slots, self.sizes, strict=True)]

    def learned(self) -> list[str]:
        """The tasks kept in states and files: with a base those that have begun, and any others
        whose tensor is not, to the bit, the start."""
        if self.sharded:
            return list(self.own)  # processes could come to different answers
        begun, is_cow = self.begun or (), torch._C._is_cow_tensor  # type: ignore[attr-defined]
        return [
            task
            for task, flat in self.own.items()
            if not (is_cow(flat) or same(flat, self.start)) or int(task) in begun
        ]

    def move_start(self, start: Tensor) -> None:
        """Let later tasks start from this; those that there are keep the start that they had."""
        for task, flat in self.own.items():
            if is_fresh(flat):
                self.put(task, self.start.clone())
        self.start = start

    def restart(self, start: Tensor) -> None:
        """Let all tasks start from this."""
        self.start = start
        for task in list(self.own):
            self.put(task, fresh(start))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As for any module, but tasks that share the start's memory go on sharing it.

        Statistics for recognition count rows, so they never have fewer bits than `float32`.
        """
        move = _wide(fn) if self.kind == RECOGNITION else fn
        self.start = move(self.start)
        order = dict(self.own)
        shared = {} if self.start.is_shared() else {t: f for t, f in order.items() if is_fresh(f)}
        for task in shared:
            del self.own[task]
        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        moved = dict(self.own)
        self.own.clear()
        self.own.update({task: moved.get(task, flat) for task, flat in order.items()})
        for task in shared:
            self.put(task, fresh(self.start))
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for task in self.learned():
            destination[f"{prefix}{task}"] = (
                self.own[task] if keep_vars else self.own[task].detach()
            )

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Tensor],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take what tasks learned; the others have the start."""
        if self.sharded:  # all tasks are in the state, as in that of any module
            lists = (missing_keys, unexpected_keys, error_msgs)
            super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
            return
        given = {key[len(prefix) :]: t for key, t in state_dict.items() if key.startswith(prefix)}
        for task, value in given.items():
            if task not in self.own:
                unexpected_keys.append(prefix + task)
            elif value.shape != self.start.shape:
                shapes = f"{tuple(value.shape)}, and {tuple(self.start.shape)} in the model"
                error_msgs.append(f"size mismatch for {prefix}{task}: it is {shapes}")
        for task, flat in self.own.items():
            value = given.get(task, self.start)
            value = value if value.shape == self.start.shape else self.start
            if task in given or not is_fresh(flat):
                with torch.no_grad():
                    flat.copy_(value)
            if task in given and self.kind in WRITTEN:
                self.agreed[task] = value.clone()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have no copy of what shares the start's memory."""
        state, kept = dict(vars(self)), "_buffers" if self.kind in WRITTEN else "_parameters"
        state[kept] = {t: None if is_fresh(flat) else flat for t, flat in self.own.items()}
        return state | {"learns": {t: flat.requires_grad for t, flat in self.own.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        learns = state.pop("learns")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.start.is_shared():  # memory that torch.load made cannot be copied on write
            self.start = self.start.clone()
        own = dict(self.own)
        self.own.clear()
        for task, flat in own.items():
            if flat is None:
                self.put(task, fresh(self.start), learns[task])
            else:
                self.own[task] = flat

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """An optimiser that is copied with the model knows the copies of its parameters."""
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        memo |= {id(flat): made.own[task] for task, flat in self.own.items()}
        return made


def fresh(start: Tensor) -> Tensor:
    """A copy of the start that takes no memory until it is written to."""
    return torch._lazy_clone(start) if start.device.type in ("cpu", "cuda") else start.clone()


def is_fresh(flat: Tensor) -> bool:
    """Whether nothing was written to a copy of the start yet."""
    return bool(torch._C._is_cow_tensor(flat))  # type: ignore[attr-defined]


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    if one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_meta:  # there are no bits
        return one.shape == other.shape
    return torch.equal(one.detach().view(torch.uint8), other.detach().view(torch.uint8))


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a `DTensor`, of which each process has a part."""
    return hasattr(tensor, "placements")


def _wide(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same move of a tensor, to types of 32 bits and more alone."""

    def moved(tensor: Tensor) -> Tensor:
        found = fn(tensor)
        narrow = found.dtype.itemsize < torch.float32.itemsize
        return tensor.to(found.device) if narrow else found

    return moved
