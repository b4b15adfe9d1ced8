"""Flat tensors: all numbers of a kind that a task has for itself, of which layers see views.

A task that has learned nothing shares the memory of the start, copy on write, so it costs little
more than its name, and the number of tensors grows with the tasks, not with tasks × layers. Each
task's tensor is a parameter of its own: an optimiser that was made once trains every task, and its
momentum and weight decay do not reach the other tasks, whose parameters have no gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor, nn

from superpose.nn.additions import BEGUN, DOWN, INPUT_SHAPES, SEEN, UP, added_to
from superpose.nn.names import joined
from superpose.nn.quantised import is_quantised

if TYPE_CHECKING:
    from superpose.nn.layer import Layer

TRAINED, RANK, FROZEN, STATISTICS = "trained", "rank", "frozen", "statistics"
RECOGNITION = "recognition"
LEARNED = (TRAINED, RANK)
WRITTEN = (STATISTICS, RECOGNITION)  # by the layers, not by an optimiser


@dataclass(eq=False)
class Part:
    """One private tensor of a layer, and where it is in the flat tensors of the tasks."""

    layer: Layer
    name: str
    kind: str
    shape: torch.Size
    group: Group = field(init=False)
    offset: int = field(init=False)

    @classmethod
    def like(cls, layer: Layer, name: str) -> Part:
        """The tensor that a layer has under this name, now each task's own."""
        template = layer.template(name)
        learns = isinstance(template, nn.Parameter)
        kind = (TRAINED if template.requires_grad else FROZEN) if learns else STATISTICS
        added = added_to(layer, name)
        if added is not None and added[1] in (DOWN, UP):
            kind = RANK  # by themselves, because they want a learning rate of their own
        if added is not None and added[1] in INPUT_SHAPES:
            kind = RECOGNITION  # by themselves, because they can be added to a model later
        return cls(layer, name, kind, template.shape)

    @property
    def path(self) -> str:
        """Its name in the plain network."""
        return joined(self.layer.path, self.name)

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return self.shape.numel()

    @property
    def trained(self) -> bool:
        """Whether tasks learn it."""
        return self.kind in LEARNED

    @property
    def marks_begin(self) -> bool:
        """Whether it says that a task has begun to learn."""
        added = added_to(self.layer, self.name)
        return added is not None and added[1] == BEGUN

    @property
    def counts_inputs(self) -> bool:
        """Whether it says of how many batches a running mean is."""
        added = added_to(self.layer, self.name)
        return added is not None and added[1] == SEEN

    def of(self, task: int) -> Tensor:
        """The task's tensor: a view of its flat one."""
        return self.group.of(task)[self.offset : self.offset + self.numel].view(self.shape)

    def template(self) -> Tensor:
        """What the layer has: a new task starts from it.

        That of an addition, which the layer does not have, is drawn once: another type of number
        would draw another. A layer that is private as a whole may have been quantised since.
        """
        drawn = added_to(self.layer, self.name) is not None
        once = drawn or is_quantised(self.layer.stored(self.name))
        if once and hasattr(self, "group") and self.group.has_start:
            return self.group.start[self.offset : self.offset + self.numel].view(self.shape)
        return self.layer.template(self.name).detach()


class Group(nn.Module):
    """The flat tensors of all tasks, of one type of number: parameters, or buffers (statistics).

    Only those that differ from what a new task has are in its state.
    """

    has_start = True  # not so where only shapes were known, and memory came later

    def __init__(self, kind: str, parts: list[Part]) -> None:
        super().__init__()
        self.kind, self.parts = kind, parts
        self.start = self.templates()
        offset = 0
        for part in parts:
            part.group, part.offset = self, offset
            offset += part.numel

    def add(self, tasks: Iterable[int]) -> None:
        """Give new tasks what the layers have now."""
        now = self.templates()
        started = same(now, self.start)
        for task in tasks:
            self._put(task, fresh(self.start) if started else now.clone())

    def remove(self, task: int) -> None:
        """Forget the task's tensor."""
        delattr(self, str(task))

    def of(self, task: int) -> Tensor:
        """The task's flat tensor."""
        return self.flats()[str(task)]

    def flats(self) -> dict[str, Tensor]:
        """By task; `getattr` would take ten times as long. A replica has no parameters."""
        kept: Any = self._parameters or self._buffers
        own = vars(self) if "_is_replica" in vars(self) and not kept else kept
        return cast(dict[str, Tensor], own)

    @property
    def sharded(self) -> bool:
        """Whether each process has a part of every tensor."""
        return any(map(is_sharded, self.flats().values()))

    def templates(self) -> Tensor:
        """What the layers have, as one flat tensor."""
        return torch.cat([part.template().reshape(-1) for part in self.parts])

    def learned(self) -> list[int]:
        """The tasks whose tensor differs, by a bit, from what a new task would have.

        All of them, if each process has a part of every tensor and could come to another answer.
        """
        if self.sharded:
            return [int(task) for task in self.flats()]
        new = self.templates()
        started = same(new, self.start)
        return [
            int(task)
            for task, flat in self.flats().items()
            if not (started and is_fresh(flat)) and not same(flat, new)
        ]

    def has_learned(self, task: int) -> bool:
        """Whether a task's tensor differs, by a bit, from the start."""
        flat = self.of(task)
        while torch._C._functorch.is_functorch_wrapped_tensor(flat):  # given to a transform
            flat = torch._C._functorch.get_unwrapped(flat)
        return not is_fresh(flat) and not same(flat.to(self.start.device), self.start)

    def restart(self) -> None:
        """Forget what all tasks have learned: they start from what the layers have now."""
        self.start, self.has_start = self.templates(), True
        for task in list(self.flats()):
            self._put(int(task), fresh(self.start))

    def split(self, flat: Tensor) -> list[Tensor]:
        """The tensors of all parts, from (…, numbers); leading dimensions stay."""
        parts = flat.split([part.numel for part in self.parts], -1)
        lead = flat.shape[:-1]
        return [one.view(lead + part.shape) for one, part in zip(parts, self.parts, strict=True)]

    def _put(self, task: int, flat: Tensor) -> None:
        """Make this the task's tensor; an optimiser that knows its parameter goes on knowing it."""
        known = self.flats().get(str(task))
        if known is not None and torch._has_compatible_shallow_copy_type(known, flat):
            known.data = flat
        elif self.kind in WRITTEN:  # without the checks of `register_buffer`: there may be many
            self._buffers[str(task)] = flat
        else:
            trained = self.kind in LEARNED if known is None else known.requires_grad
            self._parameters[str(task)] = nn.Parameter(flat, trained)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As for any module, but those that share the start's memory go on sharing it.

        Statistics for recognition count rows, so they never have fewer bits than `float32`.
        """
        if self.kind == RECOGNITION:
            fn = _wide(fn)
        was_meta = self.start.is_meta
        self.start = fn(self.start)
        self.has_start &= not was_meta or self.start.is_meta
        kept: dict[str, Any] = self._parameters or self._buffers
        order = dict(kept)
        sharing = {} if self.start.is_shared() else {t: f for t, f in order.items() if is_fresh(f)}
        for task in sharing:
            del kept[task]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved = dict(kept)
        kept.clear()
        kept.update({task: moved.get(task, flat) for task, flat in order.items()})
        for task in sharing:
            self._put(int(task), fresh(self.start))
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for task in self.learned():
            flat = self.of(task)
            destination[f"{prefix}{task}"] = flat if keep_vars else flat.detach()

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
        """Take what was learned; the other tasks start from what the layers have."""
        if self.sharded:  # all tasks are in the state, as in that of any module
            lists = (missing_keys, unexpected_keys, error_msgs)
            super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
            return
        self.restart()
        for key, value in state_dict.items():
            task = key.removeprefix(prefix)
            if not key.startswith(prefix):
                continue
            if task not in self.flats():
                unexpected_keys.append(key)
            elif value.shape != self.start.shape:
                shapes = f"{tuple(value.shape)}, and {tuple(self.start.shape)} in the model"
                error_msgs.append(f"size mismatch for {key}: it is {shapes}")
            else:
                with torch.no_grad():
                    self.of(int(task)).copy_(value)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have no copy of what shares the start's memory."""
        state = dict(vars(self))
        for name in ("_parameters", "_buffers"):
            kept = {t: None if is_fresh(flat) else flat for t, flat in state[name].items()}
            state[name] = kept
        return state | {"trained": {t: p.requires_grad for t, p in self.named_parameters()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        trained = state.pop("trained")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.start.is_shared():  # memory that torch.load made cannot be copied on write
            self.start = self.start.clone()
        for task, flat in list((self._parameters or self._buffers).items()):
            if flat is None:
                self._put(int(task), fresh(self.start))
        for task, learns in trained.items():
            self.of(int(task)).requires_grad_(learns)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """An optimiser that is copied with the model knows the copies of its parameters."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        memo |= {id(flat): made.flats()[task] for task, flat in self.flats().items()}
        return made


def fresh(start: Tensor) -> Tensor:
    """A copy of the start that takes no memory until it is written to."""
    return torch._lazy_clone(start) if start.device.type in ("cpu", "cuda") else start.clone()


def is_fresh(flat: Tensor) -> bool:
    """Whether nothing was written to a copy of the start yet."""
    return bool(torch._C._is_cow_tensor(flat))  # type: ignore[attr-defined]


def _wide(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same move of a tensor, to types of 32 bits and more alone."""

    def moved(tensor: Tensor) -> Tensor:
        found = fn(tensor)
        narrow = found.dtype.itemsize < torch.float32.itemsize
        return tensor.to(found.device) if narrow else found

    return moved


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
