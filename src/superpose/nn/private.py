"""Tensors that every task has for itself: one flat tensor a task, of which layers see views.

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

from superpose.errors import SuperposeError
from superpose.nn.additions import BEGUN, DOWN, INPUT_SHAPES, UP, added_to
from superpose.nn.names import joined
from superpose.nn.selection import Tasks, by_row
from superpose.nn.steps import watch

if TYPE_CHECKING:
    from superpose.nn.layer import Layer

STATE = "private_state"  # the last layer has it: a container runs all that is put into it
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

    def of(self, task: int) -> Tensor:
        """The task's tensor: a view of its flat one."""
        return self.group.of(task)[self.offset : self.offset + self.numel].view(self.shape)

    def template(self) -> Tensor:
        """What the layer has: a new task starts from it."""
        return self.layer.template(self.name).detach()


class Group(nn.Module):
    """The flat tensors of all tasks, of one type of number: parameters, or buffers (statistics).

    Only those that differ from what a new task has are in its state.
    """

    def __init__(self, kind: str, parts: list[Part]) -> None:
        super().__init__()
        self.kind, self.parts = kind, parts
        offset = 0
        for part in parts:
            part.group, part.offset = self, offset
            offset += part.numel
        self.start = self.templates()

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
        self.start = self.templates()
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
        """As for any module, but those that share the start's memory go on sharing it."""
        self.start = fn(self.start)
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


class PrivateState(nn.Module):
    """What all tasks of a model have for themselves.

    It is a module inside the last superposed layer, so that a state is loaded after those of all
    layers, which it starts from, and no container has more modules than the plain one.
    """

    def __init__(self, layers: Iterable[Layer]) -> None:
        super().__init__()
        self.begun: set[int] = set()  # tasks of which the mark was seen
        self.names: dict[int | str, int] = {}  # of tasks: the model's own table
        self.ran: dict[int, bool] = {}  # tasks that ran with gradients: since the last step?
        self.left_out: dict[int, int] = {}  # steps of optimisers that had not the task's tensors
        alike: dict[tuple[str, torch.dtype, torch.device], list[Part]] = {}
        own = [part for layer in layers for part in layer.private.values()]
        for part in sorted(own, key=lambda part: part.path):  # not as layers were registered
            template = part.template()
            alike.setdefault((part.kind, template.dtype, template.device), []).append(part)
        for (kind, _, _), parts in alike.items():
            same_kind = sum(name.startswith(kind) for name in self._modules)
            name = f"{kind}_{same_kind + 1}" if same_kind else kind
            self.register_module(name, Group(kind, parts))
        self.mark = next((part for part in own if part.marks_begin), None)
        watch(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        watch(self)

    def extend(self, parts: list[Part], tasks: Iterable[int]) -> None:
        """Give tasks that are there already something new to keep, all of it of one kind."""
        group = Group(parts[0].kind, sorted(parts, key=lambda part: part.path))
        self.register_module(group.kind, group)
        group.add(tasks)

    @classmethod
    def put_into(cls, layers: list[Layer]) -> PrivateState:
        """Make it, from what the layers say is private."""
        layers[-1].private_state = made = cls(layers)
        return made

    @property
    def groups(self) -> dict[str, Group]:
        """By name."""
        return cast(dict[str, Group], self._modules)

    def flats(self, tasks: Iterable[int]) -> list[Tensor]:
        """The flat tensors of these tasks, of all groups."""
        return [group.of(task) for task in dict.fromkeys(tasks) for group in self.groups.values()]

    @property
    def parts(self) -> list[Part]:
        """Of all groups."""
        return [part for group in self.groups.values() for part in group.parts]

    def add(self, tasks: Iterable[int]) -> None:
        """Give new tasks their tensors, as the layers have them."""
        tasks = list(tasks)
        self.begun.difference_update(tasks)
        for group in self.groups.values():
            group.add(tasks)

    def remove(self, task: int) -> None:
        """Forget a task's tensors."""
        self.ran.pop(task, None)
        for group in self.groups.values():
            group.remove(task)

    def of(self, task: int) -> dict[str, Tensor]:
        """A task's tensors, by the names that they have in the plain network."""
        return {part.path: part.of(task) for part in self.parts}

    def has_begun(self, task: int) -> bool:
        """Whether a task has begun to learn: by a gradient, or by what it has for itself.

        What it has is looked at each time: it may be given for one pass, or taken back.
        """
        if task not in self.begun and self.mark is not None:
            mark = self.mark.of(task)
            if not mark.is_meta and bool(mark):
                self.begun.add(task)
        return task in self.begun or any(
            group.has_learned(task) for group in self.groups.values() if group.kind in LEARNED
        )

    def all_start(self, tasks: Iterable[int]) -> bool:
        """Whether all of these tasks are the base still, with nothing else to tell them apart."""
        kept = [group for group in self.groups.values() if group.kind != RECOGNITION]
        return self.mark is not None and not any(
            self.has_begun(task) or any(group.has_learned(task) for group in kept)
            for task in dict.fromkeys(tasks)
        )

    @torch.no_grad()
    def begin(self, tasks: Iterable[int]) -> None:
        """Take note that these tasks have begun to learn."""
        for task in tasks:
            if self.mark is not None:
                self.mark.of(task).fill_(1)
            self.begun.add(task)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Before the groups are loaded, of which tasks have begun nothing is known."""
        self.begun.clear()
        super()._load_from_state_dict(*arguments)

    def learned(self) -> list[int]:
        """The tasks that have learned something."""
        found = {task: None for group in self.groups.values() for task in group.learned()}
        return sorted(found)

    def select(self, tasks: Tasks) -> dict[str, dict[str, Tensor]]:
        """For each layer, by its path, its tensors of a task, or of that of each row, (rows, …)."""
        found: dict[str, dict[str, Tensor]] = {}
        for group in self.groups.values():
            if group.kind == RECOGNITION and tasks.row is not None:
                continue  # no layer needs them there
            flats = [group.of(task) for task in tasks.unique]
            if is_sharded(flats[0]):
                raise SuperposeError(
                    "the private tensors of tasks are sharded, and a pass needs them before its "
                    "layers run: call fully_shard on the model as a whole, not on its last layer "
                    "by itself, and call the model, not a method of it"
                )
            tensors = group.split(by_row(flats, tasks.row))
            if group.kind in WRITTEN and tasks.row is None:  # what one layer writes to its own
                tensors = [tensor.data for tensor in tensors]  # does not outdate another's
            for part, tensor in zip(group.parts, tensors, strict=True):
                found.setdefault(part.layer.path, {})[part.name] = tensor
        return found


@dataclass(frozen=True)
class Kept:
    """Where private tensors were, and the numbers in them: whether they are still the same.

    Versions do not tell: fused optimisers, `tensor.data` and NumPy write without counting.
    """

    memory: list[Tensor]  # not released, so that no other tensor can be where it is
    numbers: list[Tensor]

    @classmethod
    def of(cls, state: PrivateState, tasks: Iterable[int]) -> Kept:
        """Of these tasks, as they are now."""
        memory = [flat.detach() for flat in state.flats(tasks)]
        return cls(memory, [flat.clone() for flat in memory])

    def holds(self, state: PrivateState, tasks: Iterable[int]) -> bool:
        """Whether these tasks have the same tensors, with the same numbers in them."""
        flats = state.flats(tasks)
        return len(flats) == len(self.memory) and all(
            _same_memory(flat, memory) and torch.equal(flat, numbers)
            for flat, memory, numbers in zip(flats, self.memory, self.numbers, strict=True)
        )


def _same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether they share their memory; `data_ptr` would copy what is fresh."""
    return bool(torch._C._is_alias_of(one, other))  # type: ignore[attr-defined]


def modules(model: nn.Module) -> list[nn.Module]:
    """The network's own modules, in order, each of them once; `nn.Module.modules` takes longer."""
    seen: dict[nn.Module, None] = {}
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is None or module in seen or isinstance(module, PrivateState):
            continue
        seen[module] = None
        waiting += reversed(module._modules.values())
    return list(seen)


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


def is_private(name: str) -> bool:
    """Whether a tensor of this name, in a state, is some task's own."""
    return f".{STATE}." in f".{name}"


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a `DTensor`, of which each process has a part."""
    return hasattr(tensor, "placements")
