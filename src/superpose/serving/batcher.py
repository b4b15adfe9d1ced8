"""The batcher: requests of different tasks share a batch.

While one batch runs, the next one forms, so an idle model never waits for a batch to fill. The
model's thread takes batches from the queue itself, so it goes on however busy the event loop is.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import ceil
from threading import Condition, Thread
from time import perf_counter
from typing import Generic, TypeVar

from superpose import SuperposeError
from superpose.serving.fair_queue import FairQueue, Job
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
    ) -> None:
        if batch_rows < 1 or queue_rows < 1:
            raise SuperposeError(f"{batch_rows=}, {queue_rows=}: must be at least 1")
        self.batch_rows = batch_rows
        self.queue_rows = queue_rows
        self._run = run
        self._queue: FairQueue[J] = FairQueue()
        self._changed = Condition()  # guards the queue, and wakes the model's thread
        self._closing = False
        self._rows_per_second = 0.0  # a moving average
        self._waking = False  # a call of `_wake` is scheduled
        self._thread: Thread | None = None
        self._futures: dict[J, asyncio.Future[R]] = {}  # used in the event loop alone

    @property
    def waiting_rows(self) -> int:
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
            waiting = self._queue.rows
            if self._closing:
                raise RequestError(503, "the server is stopping: ask another one")
            if waiting + rows > self.queue_rows:
                seconds = max(1, ceil(waiting / (self._rows_per_second or float("inf"))))
                detail = f"{waiting} of {self.queue_rows} rows wait, the request has {rows}"
                raise RequestError(429, f"the queue is full ({detail}): try again later", seconds)
            for job in jobs:
                self._queue.push(job)
        loop = asyncio.get_running_loop()
        if not self._waking:  # after this turn of the event loop, so that its jobs go together
            self._waking = True
            loop.call_soon(self._wake)
        futures = {job: loop.create_future() for job in jobs}
        self._futures |= futures
        try:
            return [await future for future in futures.values()]
        finally:
            for job, future in futures.items():
                if self._futures.pop(job, None) is not None:
                    with self._changed:
                        self._queue.drop(job)
                if not future.cancel() and not future.cancelled():
                    future.exception()  # retrieved, or asyncio would log it

    def _wake(self) -> None:
        self._waking = False
        with self._changed:
            self._changed.notify()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue.rows or self._closing)
                batch = self._queue.take(self.batch_rows)
                if not batch and self._closing:
                    return
            if batch:
                loop.call_soon_threadsafe(self._deliver, batch, self._outcomes(batch))
                del batch  # or it would hold its version until the next one

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

    def _deliver(self, jobs: list[J], outcomes: list[R | Exception]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            future = self._futures.pop(job, None)
            if future is None or future.done():  # the client is gone
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
