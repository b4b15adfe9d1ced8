"""The batcher's queue: counted in rows, fair between tasks."""

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Job(Hashable, Protocol):
    """Rows of one task that run together. Jobs of one `kind` can share a batch."""

    rows: int
    task: str

    @property
    def kind(self) -> Hashable: ...


J = TypeVar("J", bound=Job)


class FairQueue(Generic[J]):
    """Weighted fair queueing: of the tasks that wait, the one with the fewest rows goes first.

    Each task has a clock that advances by its rows. The queue's clock advances by the rows that
    each waiting task would have had if they had shared equally. A task that was away starts at the
    queue's clock, so it has no rows to catch up on.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._lines: dict[str, OrderedDict[J, None]] = {}  # of tasks with jobs
        self._clocks: dict[str, float] = {}
        self._clock = 0.0

    def push(self, job: J) -> None:
        """Put a job at the end of its task's line."""
        if job.task not in self._lines:
            self._lines[job.task] = OrderedDict()
            self._clocks[job.task] = max(self._clock, self._clocks.get(job.task, 0.0))
        self._lines[job.task][job] = None
        self.rows += job.rows

    def drop(self, job: J) -> None:
        """Remove a job, if it is still in the queue."""
        line = self._lines.get(job.task)
        if line is None or job not in line:
            return
        del line[job]
        self.rows -= job.rows
        if not line:
            del self._lines[job.task]
        if not self._lines:  # nobody waits, so nobody is behind
            self._clocks.clear()
            self._clock = 0.0

    def take(self, limit: int) -> list[J]:
        """Remove the next batch: jobs of one kind with `limit` rows at most, or one larger job."""
        batch: list[J] = []
        order = [(self._clocks[task], place, task) for place, task in enumerate(self._lines)]
        heapq.heapify(order)
        while order and limit > 0:
            clock, place, task = heapq.heappop(order)
            job = next(iter(self._lines[task]))
            if batch and (job.kind != batch[0].kind or job.rows > limit):
                continue
            batch.append(job)
            limit -= job.rows
            self._clock += job.rows / len(self._lines)
            self._clocks[task] = clock + job.rows
            self.drop(job)
            if task in self._lines:
                heapq.heappush(order, (clock + job.rows, place, task))
        return batch
