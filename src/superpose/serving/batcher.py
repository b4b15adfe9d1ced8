"""The batcher: requests of different tasks meet in one batch.

Nobody waits for a batch to fill: while one runs, the next one gathers. With `longest_wait` a batch
that is not full waits so long for more. The model's thread takes its batches from the queue itself,
so it goes on however busy the event loop is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import ceil
from threading import Condition, Thread
from time import monotonic, perf_counter
from typing import Generic, TypeVar

from superpose.errors import at_least_one
from superpose.serving.fair_queue import FairQueue, Waiting, Work
from superpose.serving.request_error import RequestError

W = TypeVar("W", bound=Work)
R = TypeVar("R")


class Batcher(Generic[W, R]):
    """Runs works in batches: `run` takes those of a batch, and gives a result for each, in order.

    It is used from one event loop; `run` is called in a thread, one batch at a time.
    """

    def __init__(
        self,
        run: Callable[[list[W]], list[R]],
        *,
        batch_rows: int = 64,
        queue_rows: int = 4096,
        longest_wait: float = 0.0,
    ) -> None:
        at_least_one(batch_rows=batch_rows, queue_rows=queue_rows)
        self.batch_rows = batch_rows
        self.queue_rows = queue_rows
        self.longest_wait = longest_wait
        self._run = run
        self._queue: FairQueue[W] = FairQueue()
        self._changed = Condition()  # guards the queue, and tells the thread of works
        self._closing = False
        self._speed = 0.0  # rows a second, of late
        self._telling = False  # the event loop is about to tell the thread of works
        self._thread: Thread | None = None
        self._futures: dict[Waiting[W], asyncio.Future[R]] = {}  # used in the event loop alone

    @property
    def waiting_rows(self) -> int:
        """How many rows are in the queue."""
        return self._queue.rows

    def start(self) -> None:
        """Begin to run batches; their results are told in the event loop that runs now."""
        loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._serve, args=(loop,), name="model", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Run what was accepted, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def submit(self, works: Sequence[W]) -> list[R]:
        """The results of works, all of them accepted or none.

        If the caller is cancelled, those that are not running yet are taken out of the queue.
        """
        rows = sum(work.rows for work in works)
        with self._changed:
            if self._closing:
                raise RequestError(503, "the server is stopping: ask another one")
            if self._queue.rows + rows > self.queue_rows:
                raise RequestError(
                    429,
                    f"the queue is full ({self._queue.rows} of {self.queue_rows} rows wait, the "
                    f"request has {rows}): try again later",
                    max(1, ceil(self._queue.rows / self._speed)) if self._speed else 1,
                )
            places = [self._queue.push(work) for work in works]
        loop = asyncio.get_running_loop()
        if not self._telling:  # those that came at the same time go together
            self._telling = True
            loop.call_soon(self._tell)
        futures = {place: loop.create_future() for place in places}
        self._futures |= futures
        results = []
        try:
            for future in futures.values():
                results.append(await future)
            return results
        finally:
            for place, future in futures.items():
                if self._futures.pop(place, None) is not None:
                    with self._changed:
                        self._queue.drop(place)
                if not future.cancel() and not future.cancelled():
                    future.exception()  # seen: it is the first one that is told

    def _tell(self) -> None:
        self._telling = False
        with self._changed:
            self._changed.notify()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the model's thread: one batch after the other."""
        while True:
            with self._changed:
                self._gather()
                batch = self._queue.take(self.batch_rows)
                if not batch and self._closing:
                    return
            if batch:
                outcomes = self._run_all([work for _, work in batch])
                places = [place for place, _ in batch]
                del batch
                loop.call_soon_threadsafe(self._settle, places, outcomes)

    def _gather(self) -> None:
        """Wait for the first work, and if told so for more."""
        self._changed.wait_for(lambda: self._queue.rows or self._closing)
        end = monotonic() + self.longest_wait
        while self._queue.rows < self.batch_rows and not self._closing:
            left = end - monotonic()
            if left <= 0:
                return
            self._changed.wait(left)

    def _run_all(self, works: list[W]) -> list[R | Exception]:
        """The result of each. If a batch fails, each work is run alone: one fails, not all."""
        began = perf_counter()
        try:
            results: list[R | Exception] = list(self._run(works))
        except Exception as error:  # whatever a network does with numbers that it was not made for
            results = [error] if len(works) == 1 else [self._run_all([one])[0] for one in works]
        rows = sum(work.rows for work in works)
        speed = rows / max(perf_counter() - began, 1e-6)
        self._speed = 0.9 * self._speed + 0.1 * speed if self._speed else speed
        return results

    def _settle(self, places: list[Waiting[W]], outcomes: list[R | Exception]) -> None:
        """Give results to those who wait for them, in the event loop."""
        for place, outcome in zip(places, outcomes, strict=True):
            future = self._futures.pop(place, None)
            if future is None or future.done():  # its client is gone
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
