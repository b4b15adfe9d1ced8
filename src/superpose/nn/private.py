"""Private tensors: what every task of a model has for itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.nn.flat import LEARNED, RECOGNITION, WRITTEN, Group, Part, is_sharded
from superpose.nn.selection import Tasks, by_row
from superpose.nn.steps import noticed, watch

if TYPE_CHECKING:
    from superpose.nn.layer import Layer

STATE = "private_state"  # the last layer has it: a container runs all that is put into it


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
        layers = list(layers)
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
        self.bound = [layer for layer in layers if layer.contexts]
        self.counts = [part for part in own if part.counts_inputs]
        self.centred: set[int] = set()  # tasks that were seen to have means, or warned of
        watch(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        empty: dict[str, Any] = {"names": {}, "ran": {}, "left_out": {}}  # in older pickles
        empty |= {"bound": [], "counts": [], "centred": set()}
        super().__setstate__(empty | state)  # type: ignore[no-untyped-call]
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

    @property
    def learns(self) -> bool:
        """Whether tasks have parameters for themselves, by whose change they begin to learn."""
        return any(group.kind in LEARNED for group in self.groups.values())

    def name_of(self, task: int) -> str | int:
        """What a task is called."""
        return next((name for name, number in self.names.items() if number == task), task)

    def add(self, tasks: Iterable[int]) -> None:
        """Give new tasks their tensors, as the layers have them."""
        tasks = list(tasks)
        self.begun.difference_update(tasks)
        for group in self.groups.values():
            group.add(tasks)

    def remove(self, task: int) -> None:
        """Forget a task's tensors."""
        self.ran.pop(task, None)
        self.centred.discard(task)
        for group in self.groups.values():
            group.remove(task)

    def of(self, task: int) -> dict[str, Tensor]:
        """A task's tensors, by the names that they have in the plain network."""
        return {part.path: part.of(task) for part in self.parts}

    def starts(self) -> dict[str, dict[str, Tensor]]:
        """For each layer, by its path, copies of the tensors that a new task has."""
        found: dict[str, dict[str, Tensor]] = {}
        for part in self.parts:
            found.setdefault(part.layer.path, {})[part.name] = part.template().clone()
        return found

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
            flats = [noticed(self, task, group.of(task)) for task in tasks.unique]
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


def is_private(name: str) -> bool:
    """Whether a tensor of this name, in a state, is some task's own."""
    return f".{STATE}." in f".{name}"
