"""The batcher: requests of different tasks share a batch.

While one batch runs, the next one forms, so an idle model never waits for a batch to fill; with
`longest_wait` a batch that is not full waits so many seconds for more. The model's thread takes
batches from the queue itself, so it goes on however busy the event loop is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import ceil
from threading import Condition, Thread
from time import monotonic, perf_counter
from typing import Generic, TypeVar

from superpose import SuperposeError
from superpose.serving.fair_queue import FairQueue, Job, Place
from superpose.serving.request_error import RequestError

J = TypeVar("J", bound=Job)
R = TypeVar("R")


class Batcher(Generic[J, R]):
    """Run jobs in batches: `run` takes the jobs of a batch and returns their results in order.

    `start`, `submit` and `close` are for one event loop; `run` is called in a thread, one batch at
    a time.
    """

    def __init__(
        self,
        run: Callable[[list[J]], list[R]],
        *,
        batch_rows: int = 64,
        queue_rows: int = 4096,
        longest_wait: float = 0.0,
    ) -> None:
        if batch_rows < 1 or queue_rows < 1:
            raise SuperposeError(
                f"batch_rows={batch_rows}, queue_rows={queue_rows}: must be at least 1"
            )
        self.batch_rows = batch_rows
        self.queue_rows = queue_rows
        self.longest_wait = longest_wait
        self._run = run
        self._queue: FairQueue[J] = FairQueue()
        self._changed = Condition()  # guards the queue, and wakes the model's thread
        self._closing = False
        self._rows_per_second = 0.0  # a moving average
        self._waking = False  # a call of `_wake` is scheduled
        self._thread: Thread | None = None
        self._futures: dict[Place[J], asyncio.Future[R]] = {}  # used in the event loop alone

    @property
    def waiting_rows(self) -> int:
        """Number of rows in the queue."""
        return self._queue.rows

    def start(self) -> None:
        """Start the model's thread; results arrive in the running event loop."""
        loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._serve, args=(loop,), name="model", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Finish accepted jobs and stop the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def submit(self, jobs: Sequence[J]) -> list[R]:
        """Return the results of jobs, which are accepted together or refused together.

        Raises `RequestError` 429 if the queue is full, 503 after `close`, and whatever `run` raised
        for one of the jobs. If the caller is cancelled, its jobs leave the queue.
        """
        rows = sum(job.rows for job in jobs)
        with self._changed:
            if self._closing:
                raise RequestError(503, "the server is stopping: ask another one")
            if self._queue.rows + rows > self.queue_rows:
                raise RequestError(
                    429,
                    f"the queue is full ({self._queue.rows} of {self.queue_rows} rows wait, the "
                    f"request has {rows}): try again later",
                    max(1, ceil(self._queue.rows / (self._rows_per_second or float("inf")))),
                )
            places = [self._queue.push(job) for job in jobs]
        loop = asyncio.get_running_loop()
        if not self._waking:  # after this turn of the event loop, so that its jobs go together
            self._waking = True
            loop.call_soon(self._wake)
        futures = {place: loop.create_future() for place in places}
        self._futures |= futures
        try:
            return [await future for future in futures.values()]
        finally:
            for place, future in futures.items():
                if self._futures.pop(place, None) is not None:
                    with self._changed:
                        self._queue.drop(place)
                if not future.cancel() and not future.cancelled():
                    future.exception()  # retrieved, or asyncio would log it

    def _wake(self) -> None:
        self._waking = False
        with self._changed:
            self._changed.notify()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._changed:
                self._wait_for_jobs()
                batch = self._queue.take(self.batch_rows)
                if not batch and self._closing:
                    return
            if batch:
                places = [place for place, _ in batch]
                outcomes = self._outcomes([job for _, job in batch])
                del batch
                loop.call_soon_threadsafe(self._deliver, places, outcomes)

    def _wait_for_jobs(self) -> None:
        self._changed.wait_for(lambda: self._queue.rows or self._closing)
        end = monotonic() + self.longest_wait
        while self._queue.rows < self.batch_rows and not self._closing:
            left = end - monotonic()
            if left <= 0:
                return
            self._changed.wait(left)

    def _outcomes(self, jobs: list[J]) -> list[R | Exception]:
        """Run a batch; if it fails, run each job alone, so that one failure stays one."""
        start = perf_counter()
        try:
            outcomes: list[R | Exception] = list(self._run(jobs))
        except Exception as error:  # a network may raise anything for numbers it was not made for
            outcomes = [error] if len(jobs) == 1 else [self._outcomes([job])[0] for job in jobs]
        speed = sum(job.rows for job in jobs) / max(perf_counter() - start, 1e-6)
        weight = 0.1 if self._rows_per_second else 1.0
        self._rows_per_second += weight * (speed - self._rows_per_second)
        return outcomes

    def _deliver(self, places: list[Place[J]], outcomes: list[R | Exception]) -> None:
        for place, outcome in zip(places, outcomes, strict=True):
            future = self._futures.pop(place, None)
            if future is None or future.done():  # the client is gone
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
