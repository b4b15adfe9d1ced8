"""Experience replay: each step learns some rows of earlier steps beside its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import at_least_one
from superpose.learning.guards import Guard
from superpose.model import Name


class Replay(Guard):
    """A reservoir of `samples` rows (Vitter 1985), `again` of which are learned at each step.

    Of the n rows that the loop has dealt so far, each is kept with the same probability
    samples / n, whatever its task, so the memory does not grow with the tasks. Without `again` a
    step replays as many rows as it has of its own. A loop calls `rows` before each pass.

    >>> guard = Replay(nn.Linear(2, 2), samples=100)
    >>> task, x, y = guard.rows("a", torch.randn(8, 2), torch.zeros(8))
    >>> task, x, y = guard.rows("b", torch.randn(8, 2), torch.ones(8))
    >>> task.count("a"), task.count("b"), x.shape
    (8, 8, torch.Size([16, 2]))
    """

    OPTIONS = ("samples", "again", "seed")
    all_tasks = True

    def __init__(
        self, model: nn.Module, samples: int = 1000, again: int | None = None, seed: int = 0
    ) -> None:
        at_least_one(samples=samples, again=1 if again is None else again)
        super().__init__(model)
        self.samples, self.again, self.seed = samples, again, seed
        self.kept: list[Tensor] = []
        self.tasks: list[Name | None] = []  # of each row that is kept
        self.seen = 0
        self.generator = torch.Generator().manual_seed(seed)

    def rows(self, task: Any, *tensors: Tensor) -> tuple[Any, ...]:
        """The rows of a step, and beside them rows drawn from those kept before it."""
        count = len(tensors[0])
        tasks = by_row(task, count)
        if not self.kept:
            self._keep(tasks, tensors)
            return task, *tensors
        drawn = torch.randperm(len(self.tasks), generator=self.generator)
        drawn = drawn[: count if self.again is None else self.again]
        more = [own[drawn.to(own.device)] for own in self.kept]
        names = tasks + [self.tasks[place] for place in drawn.tolist()]
        self._keep(tasks, tensors)
        both = zip(tensors, more, strict=True)
        return None if task is None else names, *(torch.cat([x, m.to(x.device)]) for x, m in both)

    def _keep(self, tasks: list[Name | None], tensors: tuple[Tensor, ...]) -> None:
        """Fill the reservoir; then row n takes one of n places at random, if it is one there is."""
        tensors = tuple(tensor.detach() for tensor in tensors)
        room = max(min(self.samples - self.seen, len(tasks)), 0)
        if not self.kept:
            self.kept = [tensor[:room].clone() for tensor in tensors]
        elif room:
            pairs = zip(self.kept, tensors, strict=True)
            self.kept = [torch.cat([own, new[:room].to(own.device)]) for own, new in pairs]
        self.tasks += tasks[:room]
        numbers = torch.arange(self.seen + room, self.seen + len(tasks)) + 1
        chances = torch.rand(len(numbers), generator=self.generator, dtype=torch.float64)
        places = (chances * numbers).long().tolist()
        taken = {place: row for row, place in enumerate(places, room) if place < self.samples}
        for own, new in zip(self.kept, tensors, strict=True):
            own[list(taken)] = new[list(taken.values())].to(own.device)
        for place, row in taken.items():
            self.tasks[place] = tasks[row]
        self.seen += len(tasks)

    def state_dict(self) -> dict[str, Any]:
        """The rows and their tasks, how many were seen, and the state of the generator."""
        kept = {"kept": list(self.kept), "tasks": list(self.tasks)}
        return {**kept, "seen": self.seen, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the rows of another."""
        self.kept = [tensor.clone() for tensor in state["kept"]]
        self.tasks, self.seen = list(state["tasks"]), state["seen"]
        self.generator.set_state(state["generator"])

    @property
    def numbers(self) -> int:
        """All numbers of the rows, and their tasks."""
        return sum(tensor.numel() for tensor in self.kept) + len(self.tasks)


def by_row(task: Any, count: int) -> list[Any]:
    """The task of each row, of one task for all or of one for each."""
    if isinstance(task, Tensor):
        task = task.tolist()
    return list(task) if isinstance(task, (list, tuple, range)) else [task] * count
