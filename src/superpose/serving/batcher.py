"""The batcher: requests of different tasks meet in one batch.

Nobody waits for a batch to fill: while one runs in the model's thread, the next one gathers. With
`longest_wait` a batch that is not full waits so long for more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from time import perf_counter
from typing import Any, Generic, TypeVar

from superpose.errors import at_least_one
from superpose.serving.fair_queue import FairQueue, Waiting, Work
from superpose.serving.request_error import RequestError

PATIENCE = 0.1
"""Seconds that a refusal waits for the running batch at most. Clients that ask again at once would
take the time that the batch needs to end."""

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
        self._futures: dict[Waiting[W], asyncio.Future[R]] = {}
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._closing = False
        self._speed = 0.0  # rows a second, of late
        self._loop: asyncio.Task[None] | None = None
        self._running: asyncio.Future[list[R | Exception]] | None = None

    @property
    def waiting_rows(self) -> int:
        """How many rows are in the queue."""
        return self._queue.rows

    def start(self) -> None:
        """Begin to run batches."""
        self._loop = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """Run what was accepted, and stop."""
        self._closing = True
        self._arrival.set()
        if self._loop is not None:
            await self._loop
        self._thread.shutdown()

    async def submit(self, works: Sequence[W]) -> list[R]:
        """The results of works, all of them accepted or none.

        If the caller is cancelled, those that are not running yet are taken out of the queue.
        """
        rows = sum(work.rows for work in works)
        if self._closing:
            raise RequestError(503, "the server is stopping: ask another one")
        if self.waiting_rows + rows > self.queue_rows:
            full = RequestError(
                429,
                f"the queue is full ({self.waiting_rows} of {self.queue_rows} rows wait, the "
                f"request has {rows}): try again later",
                max(1, ceil(self.waiting_rows / self._speed)) if self._speed else 1,
            )
            del works  # a refusal keeps no tensors
            if self._running is not None:
                await asyncio.wait([self._running], timeout=PATIENCE)
            raise full
        future = asyncio.get_running_loop().create_future
        places = []
        for work in works:
            place = self._queue.push(work)
            self._futures[place] = future()
            places.append(place)
        self._arrival.set()
        waited = [self._futures[place] for place in places]
        try:
            return [await one for one in waited]
        finally:
            for place, one in zip(places, waited, strict=True):
                if self._futures.pop(place, None) is not None:
                    self._queue.drop(place)
                if not one.cancel() and not one.cancelled():
                    one.exception()  # seen: it is the first one that is told

    async def _serve(self) -> None:
        done: list[tuple[asyncio.Future[R], R | Exception]] = []
        loop = asyncio.get_running_loop()
        while not self._closing or self._queue.rows or done:
            if self.longest_wait:
                done = _settle(done)
            if not done:
                await self._gather()
            batch = self._queue.take(self.batch_rows)
            if not batch:
                done = _settle(done)
                continue
            futures = [self._futures.pop(place) for place, _ in batch]
            works = [work for _, work in batch]
            self._running = loop.run_in_executor(self._thread, self._run_all, works)
            _settle(done)  # while this batch runs
            done = list(zip(futures, await self._running, strict=True))
            self._running = None

    async def _gather(self) -> None:
        """Wait for the first work, and if told so for more."""
        while not self._queue.rows and not self._closing:
            self._arrival.clear()
            await self._arrival.wait()
        end = asyncio.get_running_loop().time() + self.longest_wait
        while self.longest_wait and self._queue.rows < self.batch_rows and not self._closing:
            self._arrival.clear()
            try:
                async with asyncio.timeout_at(end):
                    await self._arrival.wait()
            except TimeoutError:
                return

    def _run_all(self, works: list[W]) -> list[R | Exception]:
        """In the model's thread. If a batch fails, each work is run alone: one fails, not all."""
        began = perf_counter()
        try:
            results: list[R | Exception] = list(self._run(works))
        except Exception as error:  # whatever a network does with numbers that it was not made for
            results = [error] if len(works) == 1 else [self._run_all([one])[0] for one in works]
        rows = sum(work.rows for work in works)
        speed = rows / max(perf_counter() - began, 1e-6)
        self._speed = 0.9 * self._speed + 0.1 * speed if self._speed else speed
        return results


def _settle(done: list[tuple[asyncio.Future[R], R | Exception]]) -> list[Any]:
    """Give results to those who wait for them; nothing is left to give."""
    for future, outcome in done:
        if future.done():  # its client is gone
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    return []
