"""What a superposed model knows of its tasks: their names, and the numbers in their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from superpose.cost import Size
from superpose.errors import SuperposeError
from superpose.model.ways import Way
from superpose.nn.convert import Conversion
from superpose.nn.patterns import FamilyByLayer, several_families

Name = int | str
Task = Name | Sequence[Name] | Sequence[Sequence[Name]] | Tensor
Ids = int | list[int] | tuple[list[int]]  # of a task, of one per row, of one per token of one row
WHOLE = (int, np.integer)


@dataclass
class Superposition:
    """What a superposed model knows of its tasks: all of it goes into a checkpoint."""

    family: FamilyByLayer
    seed: int
    names: dict[Name, int]  # what users call a task → the number in its keys
    conversion: Conversion
    plain_size: Size
    spent: int = 0  # numbers below it were given out once: no context is used twice
    ways: dict[Any, Way] = field(default_factory=dict, compare=False)  # of mixed batches
    held: frozenset[str] = frozenset()  # parameters that are frozen as part of a base

    def __post_init__(self) -> None:
        """Ask once, not at every forward pass."""
        self.complex_valued = several_families(self.family)[0].complex_valued

    @property
    def knows_direct(self) -> bool:
        """Whether all kinds of mixed batches that were run so far are direct."""
        return bool(self.ways) and all(found.name == "direct" for found in self.ways.values())

    def meaning(self) -> dict[str, Any]:
        """What the tensors of a state depend on: family, seed, and the names of tasks."""
        return {"family": repr(self.family), "seed": self.seed, "tasks": list(self.names.items())}

    def differences(self, saved: dict[str, Any] | None) -> list[str]:
        """Why a state that was saved with this meaning would be misread; none if it tells none."""
        if saved is None:
            return []
        here = self.meaning()
        found = [
            f"{what}: the state was saved with {saved[what]}, and the model has {here[what]}, so "
            f"its contexts are others: superpose the network with the same {what}"
            for what in ("family", "seed")
            if saved[what] != here[what]
        ]
        names = {number: name for name, number in self.names.items()}
        for name, number in saved["tasks"]:
            own = names.get(number, name)
            if name != own and isinstance(name, str) and isinstance(own, str):
                found.append(
                    f"task {number} is {name!r} in the state and {own!r} in the model: superpose "
                    "the network with the same tasks in the same order, or use rename_task()"
                )
        return found

    def ids(self, task: Any) -> Ids:
        """The numbers of a task, of one task per row (rows,) or per token (1, tokens), checked."""
        if isinstance(task, (Tensor, np.ndarray)):
            task = task.tolist()
        if isinstance(task, (str, *WHOLE)):
            return self._id(task)
        rows = _listed(task)
        tokens = _listed(rows[0]) if len(rows) == 1 else []
        each = tokens or rows
        if not each or not all(isinstance(one, (str, *WHOLE)) for one in each):
            raise SuperposeError(
                f"task={task!r}: give a task's name or number, one per row, or one per token of a "
                "single row, as [[…]] or a tensor (1, tokens)"
            )
        known = {one: self._id(one) for one in set(each)}
        numbers = [known[one] for one in each]
        return (numbers,) if tokens else numbers

    def number(self, task: Any) -> int:
        """The number of one task, checked."""
        found = self.ids(task)
        if not isinstance(found, int):
            raise SuperposeError(f"task={task!r}: give one task, by its name or number")
        return found

    def _id(self, task: Any) -> int:
        """A name's number; a number that names no task is that of a task with another name."""
        if not isinstance(task, bool):
            if task in self.names:
                return self.names[task]
            texts = (number for name, number in self.names.items() if isinstance(name, str))
            if not isinstance(task, str) and task in texts:
                return int(task)
        known = list(self.names)
        shown = ", ".join(map(repr, known[:10])) + (", …" if len(known) > 10 else "")
        raise SuperposeError(f"unknown task {task!r}: the {len(known)} known ones are {shown}")


def several(option: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that an option was given; one text is not several."""
    if isinstance(names, str):
        raise SuperposeError(f"{option}={names!r}: give several names, as in [{names!r}]")
    if not isinstance(names, Iterable):
        raise SuperposeError(f"{option}={names!r}: give names, as in ['cats', 'dogs']")
    return tuple(names)


def labels_of(tasks: Any) -> list[Name]:
    """The names of tasks: those that are given, or the numbers of so many."""
    if isinstance(tasks, bool) or not isinstance(tasks, (*WHOLE, Iterable)):
        raise SuperposeError(
            f"tasks={tasks!r}: give a number of tasks, or names, as in ['cats', 'dogs']"
        )
    labels: list[Name] = []
    labels += range(tasks) if isinstance(tasks, WHOLE) else several("tasks", tasks)
    check_names(labels)
    return labels


def check_names(names: Sequence[Name]) -> None:
    """Names of tasks: at least one, each different, none of them empty."""
    if not names:
        raise SuperposeError("tasks is empty: give a number of tasks, or their names")
    for name in names:
        text = isinstance(name, str) and name != ""
        number = isinstance(name, int) and not isinstance(name, bool) and name >= 0
        if not text and not number:
            raise SuperposeError(f"{name!r} cannot name a task: use a text that is not empty")
    for name, count in Counter(names).items():
        if count > 1:
            raise SuperposeError(f"two tasks cannot both be called {name!r}: choose another name")


def _listed(several: Any) -> list[Any]:
    """What a list, or anything like it, has in it; a name and a number have nothing."""
    return list(several) if isinstance(several, Iterable) and not isinstance(several, str) else []
