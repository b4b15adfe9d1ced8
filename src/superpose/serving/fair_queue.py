"""The batcher's queue: counted in rows, fair between tasks."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from itertools import count
from typing import Generic, Protocol, TypeVar


class Job(Protocol):
    """Rows of one task that run together. Jobs of one `kind` can share a batch."""

    rows: int
    task: str

    @property
    def kind(self) -> Hashable: ...


J = TypeVar("J", bound=Job)


class Place(Generic[J]):
    """A place in the queue; empty after its job was taken or dropped."""

    __slots__ = ("job",)

    def __init__(self, job: J) -> None:
        self.job: J | None = job


class FairQueue(Generic[J]):
    """Weighted fair queueing: of the tasks that wait, the one with the fewest rows goes first.

    Each task has a clock that advances by its rows. The queue's clock advances by the rows that
    each waiting task would have had if they had shared equally. A task that was away starts at the
    queue's clock, so it has no rows to catch up on.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._lines: dict[str, deque[Place[J]]] = {}
        self._order: list[tuple[float, int, str]] = []  # a heap: clock, tie-break, task
        self._idle_clocks: dict[str, float] = {}
        self._clock = 0.0
        self._ties = count()

    def push(self, job: J) -> Place[J]:
        """Put a job at the end of its task's line."""
        place = Place(job)
        line = self._lines.get(job.task)
        if line is None:
            line = self._lines[job.task] = deque()
            clock = max(self._clock, self._idle_clocks.pop(job.task, 0.0))
            heapq.heappush(self._order, (clock, next(self._ties), job.task))
        line.append(place)
        self.rows += job.rows
        return place

    def drop(self, place: Place[J]) -> None:
        """Remove a job from the queue, if it is still there."""
        if place.job is not None:
            self.rows -= place.job.rows
            place.job = None

    def take(self, limit: int) -> list[tuple[Place[J], J]]:
        """Remove the next batch: jobs of one kind with `limit` rows at most, or one larger job."""
        batch: list[tuple[Place[J], J]] = []
        passed_over = []
        free = limit
        while self._order and free > 0:
            clock, tie, task = heapq.heappop(self._order)
            line = self._lines[task]
            while line and line[0].job is None:
                line.popleft()
            if not line:
                self._leave(task, clock)
                continue
            place = line[0]
            job = place.job
            assert job is not None
            if batch and (job.kind != batch[0][1].kind or job.rows > free):
                passed_over.append((clock, tie, task))
                continue
            line.popleft()
            self.drop(place)
            batch.append((place, job))
            free -= job.rows
            self._clock += job.rows / len(self._lines)
            if line:
                heapq.heappush(self._order, (clock + job.rows, next(self._ties), task))
            else:
                self._leave(task, clock + job.rows)
        for entry in passed_over:
            heapq.heappush(self._order, entry)
        return batch

    def _leave(self, task: str, clock: float) -> None:
        del self._lines[task]
        self._idle_clocks[task] = clock
        if not self._lines:  # nobody waits, so nobody is behind
            self._idle_clocks.clear()
            self._clock = 0.0
