"""The batcher by itself, on works that are numbers."""

import asyncio
import threading
from dataclasses import dataclass

import pytest

from superpose.serving.batcher import Batcher
from superpose.serving.request_error import RequestError


@dataclass(eq=False)
class Job:
    task: str
    value: int = 0
    rows: int = 1
    kind: str = "one"


class Held:
    """Runs works when it is let, and records the batches."""

    def __init__(self):
        self.batches = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(self, works):
        self.batches.append([work.value for work in works])
        self.entered.release()
        assert self.go.acquire(timeout=60)
        if any(work.value < 0 for work in works):
            raise ValueError("negative")
        return [(work.task, work.value) for work in works]


def run(scenario, **options):
    """Run a scenario with a batcher that is started, and closed after it."""

    async def whole():
        held = Held()
        batcher = Batcher(held, **options)
        batcher.start()
        try:
            return await scenario(batcher, held)
        finally:
            for _ in range(100):
                held.go.release()
            await batcher.close()

    return asyncio.run(whole())


async def entered(held):
    await asyncio.to_thread(held.entered.acquire)


async def begun(batcher, held, *jobs):
    """The first job runs, and is held; the others are in the queue."""
    first = asyncio.create_task(batcher.submit([jobs[0]]))
    await entered(held)
    others = [asyncio.create_task(batcher.submit([job])) for job in jobs[1:]]
    await asyncio.sleep(0)  # each has put its work in the queue
    return [first, *others]


def test_a_batch_gathers_while_another_runs_and_each_gets_its_own():
    async def scenario(batcher, held):
        tasks = await begun(batcher, held, *(Job(name, n) for n, name in enumerate("abcdef")))
        assert held.batches == [[0]]  # it did not wait for more
        assert batcher.waiting_rows == 5
        held.go.release()
        held.go.release()
        assert await asyncio.gather(*tasks) == [[(n, i)] for i, n in enumerate("abcdef")]
        assert held.batches == [[0], [1, 2, 3, 4, 5]]

    run(scenario)


def test_works_that_come_at_the_same_time_go_together():
    async def scenario(batcher, held):
        held.go.release()
        jobs = [Job(name, n) for n, name in enumerate("abcd")]
        await asyncio.gather(*(batcher.submit([job]) for job in jobs))
        assert held.batches == [[0, 1, 2, 3]]  # though nothing ran, which they would wait for

    run(scenario)


def test_a_work_that_fails_does_not_fail_its_neighbours():
    async def scenario(batcher, held):
        jobs = [Job("a", 0), Job("b", 1), Job("c", -1), Job("d", 2)]
        tasks = await begun(batcher, held, *jobs)
        for _ in range(5):
            held.go.release()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[:2] == [[("a", 0)], [("b", 1)]]
        assert isinstance(results[2], ValueError)
        assert results[3] == [("d", 2)]

    run(scenario)


def test_a_full_queue_refuses_and_takes_again():
    async def scenario(batcher, held):
        tasks = await begun(batcher, held, Job("a"), Job("b", rows=2))
        with pytest.raises(RequestError, match=r"2 of 3 rows wait, the request has 2") as refused:
            await batcher.submit([Job("c", rows=1), Job("c", rows=1)])
        assert refused.value.status == 429
        assert refused.value.retry_after >= 1
        assert batcher.waiting_rows == 2  # no part of it was accepted
        tasks.append(asyncio.create_task(batcher.submit([Job("d", 4)])))
        for _ in range(3):
            held.go.release()
        assert (await asyncio.gather(*tasks))[2] == [("d", 4)]

    run(scenario, queue_rows=3)


def test_a_client_that_goes_takes_its_rows_with_it():
    async def scenario(batcher, held):
        first, gone, stays = await begun(batcher, held, Job("a", 0), Job("b", 1), Job("c", 2))
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert batcher.waiting_rows == 1
        held.go.release()
        held.go.release()
        assert await stays == [("c", 2)]
        assert held.batches == [[0], [2]]
        await first

    run(scenario)


def test_a_client_that_goes_while_it_runs_changes_nothing_for_others():
    async def scenario(batcher, held):
        gone, stays = await begun(batcher, held, Job("a", 0), Job("b", 1))
        gone.cancel()
        held.go.release()
        held.go.release()
        assert await stays == [("b", 1)]

    run(scenario)


def test_closing_ends_what_was_accepted_and_takes_no_more():
    async def scenario(batcher, held):
        tasks = await begun(batcher, held, Job("a", 0), Job("b", 1), Job("c", 2))
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="stopping") as refused:
            await batcher.submit([Job("d")])
        assert refused.value.status == 503
        held.go.release()
        held.go.release()
        assert await asyncio.gather(*tasks) == [[("a", 0)], [("b", 1)], [("c", 2)]]
        await closing

    run(scenario)


def test_health_does_not_wait_behind_a_batch():
    async def scenario(batcher, held):
        tasks = await begun(batcher, held, Job("a"))
        await asyncio.sleep(0)  # the event loop is free while the batch is held
        assert not tasks[0].done()
        held.go.release()
        await tasks[0]

    run(scenario)
