"""The queue of the batcher: counted in rows, fair between tasks."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, Protocol, TypeVar


class Work(Protocol):
    """Rows of one task that are run together."""

    rows: int
    task: str

    @property
    def kind(self) -> Hashable:
        """Works of one kind can share a batch."""


W = TypeVar("W", bound=Work)


@dataclass(eq=False)
class Waiting(Generic[W]):
    """A place in the queue."""

    work: W | None  # none after it was dropped
    rows: int
    task: str


@dataclass
class FairQueue(Generic[W]):
    """Weighted fair queueing: the task that had the fewest rows goes first.

    Each task has a clock that goes on by the rows that it had; the queue's clock goes on by the
    rows that each waiting task would have had if all had had the same. A task that comes back
    starts at the queue's clock, so it gains nothing by having been away.
    """

    rows: int = 0
    _lines: dict[str, deque[Waiting[W]]] = field(default_factory=dict)
    _order: list[tuple[float, int, str]] = field(default_factory=list)  # a heap: clock, tie, task
    _ends: dict[str, float] = field(default_factory=dict)  # clocks of tasks with nothing waiting
    _now: float = 0
    _tie: count[int] = field(default_factory=count)

    def push(self, work: W) -> Waiting[W]:
        """Put work at the end of its task's line."""
        place = Waiting(work, work.rows, work.task)
        line = self._lines.get(work.task)
        if line is None:
            line = self._lines[work.task] = deque()
            start = max(self._now, self._ends.pop(work.task, 0.0))
            heapq.heappush(self._order, (start, next(self._tie), work.task))
        line.append(place)
        self.rows += place.rows
        return place

    def drop(self, place: Waiting[W]) -> None:
        """Take work out, wherever it is; its tensors are freed at once."""
        if place.work is not None:
            place.work = None
            self.rows -= place.rows

    def take(self, most: int) -> list[tuple[Waiting[W], W]]:
        """The next batch: of one kind, of at most so many rows, or one work that is larger."""
        batch: list[tuple[Waiting[W], W]] = []
        left, kind = most, None
        aside = []
        while self._order and left > 0:
            start, tie, task = heapq.heappop(self._order)
            line = self._lines[task]
            while line and line[0].work is None:
                line.popleft()
            if not line:
                self._leave(task, start)
                continue
            place = line[0]
            work = place.work
            assert work is not None
            if batch and (work.kind != kind or work.rows > left):
                aside.append((start, tie, task))
                continue
            line.popleft()
            self.drop(place)
            batch.append((place, work))
            kind, left = work.kind, left - work.rows
            self._now += work.rows / len(self._lines)
            if line:
                heapq.heappush(self._order, (start + work.rows, next(self._tie), task))
            else:
                self._leave(task, start + work.rows)
        for entry in aside:
            heapq.heappush(self._order, entry)
        return batch

    def _leave(self, task: str, end: float) -> None:
        del self._lines[task]
        self._ends[task] = end
        if not self._lines:  # nobody waits: nobody is behind
            self._ends.clear()
            self._now = 0
