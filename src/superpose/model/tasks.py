"""Tasks: their names, and the numbers in their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from superpose.cost import Size
from superpose.errors import SuperposeError
from superpose.nn.options import Options
from superpose.nn.patterns import FamilyByLayer, several_families
from superpose.nn.view import Home, Ids

Name = int | str
Task = Name | Sequence[Name] | Tensor
WHOLE = (int, np.integer)


@dataclass
class Superposition:
    """What a superposed model knows of its tasks: all of it goes into a file."""

    family: FamilyByLayer
    seed: int
    names: dict[Name, int]  # what users call a task → the number in its keys
    options: Options
    plain_size: Size
    home: Home = field(compare=False)
    spent: int = 0  # numbers below it were given out once: no context is used twice
    held: frozenset[str] = frozenset()  # parameters that superposing froze
    by_number: bool = True  # whether tasks can be chosen by number: no name was another's number
    returned: Any = 0  # where the rows are in what the network returns

    def __post_init__(self) -> None:
        """Ask once, not at every forward pass."""
        self.complex_valued = several_families(self.family)[0].complex_valued
        self.note_names()

    def note_names(self) -> None:
        """Once a number was the name of a task with another number, numbers are names alone."""
        apart = any(isinstance(name, int) and name != n for name, n in self.names.items())
        self.by_number = self.by_number and not apart

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
        """The number of a task, or a list with that of each row."""
        if isinstance(task, (Tensor, np.ndarray)):
            task = task.tolist()
        if task.__class__ is list:  # quickly, if all of them are names
            names = self.names
            known = [names.get(one, -1) if one.__class__ in (int, str) else -1 for one in task]
            if known and -1 not in known:
                return known
        if isinstance(task, (str, *WHOLE)):
            return self._number(task)
        rows = list(task) if isinstance(task, (list, tuple, range)) else []
        if not rows or not all(isinstance(one, (str, *WHOLE)) for one in rows):
            raise SuperposeError(
                f"task={task!r}: give a task's name or number, or a list or tensor with one for "
                "each row"
            )
        return [self._number(one) for one in rows]

    def number(self, task: Any) -> int:
        """The number of one task."""
        found = self.ids(task)
        if not isinstance(found, int):
            raise SuperposeError(f"task={task!r}: give one task, by its name or number")
        return found

    def name_of(self, number: int) -> Name:
        """The name of a task."""
        return next(name for name, known in self.names.items() if known == number)

    def _number(self, task: Any) -> int:
        """A number that names no task is that of a task with a text as its name."""
        if not isinstance(task, bool):
            if task in self.names:
                return self.names[task]
            if isinstance(task, WHOLE) and self.by_number and task in self.names.values():
                return int(task)
        known = list(self.names)
        shown = ", ".join(map(repr, known[:10])) + (", …" if len(known) > 10 else "")
        raise SuperposeError(f"unknown task {task!r}: the {len(known)} known ones are {shown}")


def several(option: str, names: Iterable[Any]) -> tuple[Any, ...]:
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
    labels += range(int(tasks)) if isinstance(tasks, WHOLE) else several("tasks", tasks)
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
