"""Threads that share a model: what one tries out, the others do not see."""

import signal
import threading
import time
from functools import partial

import pytest
import torch
from checks import rows_one_by_one
from superpose.model.lock import Lock, lock_of
from torch import nn

import superpose as sp

TASKS = [0, 1, 2, 0, 1, 2]


class Slow(nn.Module):
    """Gives other threads their turn between two layers."""

    def forward(self, x):
        time.sleep(1e-4)
        return x


def together(*functions):
    """Run them at once; what they return, in order, or an error that one of them had."""
    start, found = threading.Barrier(len(functions)), [None] * len(functions)

    def run(place, function):
        start.wait()
        try:
            found[place] = function()
        except BaseException as error:
            found[place] = error

    each = enumerate(functions)
    threads = [threading.Thread(target=run, args=one, daemon=True) for one in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    errors = [one for one in found if isinstance(one, BaseException)]
    assert not errors, errors
    return found


@pytest.mark.parametrize("mixed", ["auto", "mapped", "grouped"])
def test_the_first_mixed_batches_may_come_at_once(mixed):
    """While a way is tried out, weights that are zero are noise, which no other pass may see."""
    net = nn.Sequential(nn.Linear(8, 8), Slow(), nn.ReLU(), Slow(), nn.Linear(8, 3)).eval()
    nn.init.zeros_(net[0].bias)
    nn.init.zeros_(net[4].bias)
    x = torch.randn(6, 8)

    def mixed_batches(model, done):
        with torch.no_grad():
            found = [model(x, task=TASKS) for _ in range(3)]
        done.set()
        return found

    def one_task(model, done):
        found = []
        while not found or not done.is_set():
            with torch.no_grad():
                found.append(model(x, task=1))
        return found

    for _ in range(3):
        model = sp.superpose(net, tasks=3, private="shared", mixed=mixed)
        with torch.no_grad():
            rows, one = rows_one_by_one(model, TASKS, x), model(x, task=1)
        done = threading.Event()
        calls = [partial(run, model, done) for run in (mixed_batches, one_task)] * 2
        for found, wanted in zip(together(*calls), [rows, one] * 2, strict=True):
            for y in found:
                torch.testing.assert_close(y, wanted)
        assert len(model.superposition.ways) == 1


def test_a_trial_waits_for_passes_and_passes_wait_for_a_trial():
    lock, order = Lock(), []
    inside, waiting, begun = threading.Event(), threading.Event(), threading.Event()

    def passing():
        with lock.shared:
            inside.set()
            waiting.wait(10)
            time.sleep(0.1)
            with lock.shared, lock.alone():  # of its own, inside: it would wait for itself
                order.append("nested")
            order.append("pass")

    def trying():
        inside.wait(10)
        waiting.set()
        with lock.alone(), lock.alone(), lock.shared:
            order.append("trial begins")
            begun.set()
            time.sleep(0.2)
            order.append("trial ends")

    def late():
        begun.wait(10)
        with lock.shared:
            order.append("late")

    together(passing, trying, late)
    assert order == ["nested", "pass", "trial begins", "trial ends", "late"]


def test_a_trial_that_is_interrupted_while_it_waits_leaves_the_lock_free():
    lock, ended, free = Lock(), threading.Event(), threading.Event()

    def passing():
        with lock.shared:
            ended.wait(10)

    def interrupt(*_):
        raise KeyboardInterrupt

    def later():
        with lock.shared:
            free.set()

    first = threading.Thread(target=passing)
    first.start()
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt), lock.alone():
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
        ended.set()
        first.join(10)
    threading.Thread(target=later, daemon=True).start()
    assert free.wait(10)


def test_a_trial_inside_a_pass_does_not_wait_for_one_that_waits_for_the_pass():
    inner = sp.superpose(nn.Linear(8, 8), tasks=3)
    outer = sp.superpose(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)), tasks=3)
    inside = threading.Event()
    x = torch.randn(6, 8)

    def within(module, given):
        if not inside.is_set():
            inside.set()
            time.sleep(0.2)  # the other thread comes to wait
            inner(x, task=TASKS)

    def after():
        inside.wait(10)
        outer(x, task=TASKS)

    outer[0].register_forward_pre_hook(within)
    together(lambda: outer(x, task=0), after)


def test_a_pass_that_fails_leaves_the_lock_free():
    lock = Lock()
    for held in (lock.shared, lock.alone()):
        with pytest.raises(ValueError, match="it fails"), held:
            raise ValueError("it fails")
    with lock.alone():
        pass
    model = sp.superpose(nn.Linear(4, 2), tasks=2)
    assert lock_of(model) is lock_of(model)
    assert lock_of(sp.superpose(nn.Linear(4, 2), tasks=2)) is not lock_of(model)
