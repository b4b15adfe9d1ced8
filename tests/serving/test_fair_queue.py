"""The batcher's queue: counted in rows, fair between tasks."""

from dataclasses import dataclass

import pytest

from superpose.serving.fair_queue import FairQueue


@dataclass(eq=False)
class Job:
    task: str
    rows: int = 1
    kind: str = "one"
    label: int = 0


def filled(*jobs):
    queue = FairQueue()
    for job in jobs:
        queue.push(job)
    return queue


def test_a_task_keeps_its_order():
    queue = filled(*(Job("a", label=label) for label in range(5)))
    assert [job.label for job in queue.take(3)] == [0, 1, 2]
    assert [job.label for job in queue.take(3)] == [3, 4]
    assert queue.rows == 0


def test_a_noisy_task_does_not_starve_the_others():
    queue = filled(*(Job("noisy", label=label) for label in range(100)))
    for task in "bcd":
        queue.push(Job(task))
    assert sorted(job.task for job in queue.take(4)) == ["b", "c", "d", "noisy"]


@pytest.mark.parametrize("limit", [16, 8])
def test_fair_is_by_rows_not_by_requests(limit):
    queue = filled(*(Job("large", 8) for _ in range(20)), *(Job("small") for _ in range(40)))
    had = {"large": 0, "small": 0}
    for _ in range(64 // limit):
        for job in queue.take(limit):
            had[job.task] += job.rows
    assert had["small"] >= 24, had
    assert had["large"] >= 24, had


def test_a_task_that_was_away_gains_nothing():
    queue = filled(*(Job("busy") for _ in range(50)))
    queue.take(40)
    for _ in range(50):
        queue.push(Job("back"))
    tasks = [job.task for job in queue.take(10)]
    assert tasks.count("back") == tasks.count("busy") == 5


def test_a_batch_is_of_one_kind_and_the_rest_keep_their_turn():
    jobs = [Job("a", kind="x"), Job("b", kind="y"), Job("c", kind="x"), Job("d", kind="y")]
    queue = filled(*jobs)
    assert [job.task for job in queue.take(9)] == ["a", "c"]
    assert [job.task for job in queue.take(9)] == ["b", "d"]


def test_rows_that_do_not_fit_wait():
    queue = filled(Job("a", 3), Job("b", 3), Job("c", 1))
    assert [job.task for job in queue.take(4)] == ["a", "c"]
    assert [job.task for job in queue.take(4)] == ["b"]


def test_a_work_that_is_larger_than_a_batch_runs_alone():
    queue = filled(Job("a", 9), Job("b"))
    assert [job.task for job in queue.take(4)] == ["a"]
    assert [job.task for job in queue.take(4)] == ["b"]


def test_a_dropped_job_is_neither_counted_nor_taken():
    jobs = [Job("a", 2), Job("b", 3), Job("a", 4)]
    queue = filled(*jobs)
    queue.drop(jobs[0])
    queue.drop(jobs[0])
    assert queue.rows == 7
    assert sorted((job.task, job.rows) for job in queue.take(10)) == [("a", 4), ("b", 3)]
    queue.drop(jobs[1])  # it was taken
    assert queue.rows == 0
    last = Job("a")
    queue.push(last)
    queue.drop(last)
    assert queue.take(10) == []
    queue.push(Job("a", label=7))
    assert [job.label for job in queue.take(10)] == [7]
