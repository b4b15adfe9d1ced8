"""Threads and async tasks that share a model: each has the task that it said."""

import asyncio
import threading

import pytest
import torch
from checks import scramble
from modules import Residual
from torch import nn

import superpose as sp

TASKS = [0, 1, 2, 3, 2, 1]


class Slow(nn.Module):
    """Gives other threads their turn between two layers."""

    def __init__(self):
        super().__init__()
        self.turn = threading.Event()

    def forward(self, x):
        self.turn.wait(1e-4)
        return x

    def __deepcopy__(self, memo):
        return Slow()


def together(*functions):
    """Run them at once; an error that one of them had is raised."""
    start, errors = threading.Barrier(len(functions)), []

    def run(function):
        start.wait()
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def made(**options):
    torch.manual_seed(0)
    net = nn.Sequential(Residual(), Slow(), nn.Linear(4, 8), Slow(), nn.ReLU(), nn.Linear(8, 3))
    return scramble(sp.superpose(net, "hadamard", tasks=4, **options)).eval()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("options", [{}, {"base": True, "rank": 1}, {"learnable": True}], ids=str)
def test_threads_get_their_own_answers(options, grad):
    model, x = made(**options), torch.randn(6, 3, 5, 5)
    expected = {task: model(x, task=task).detach() for task in range(4)}
    rows = torch.stack([expected[task][row] for row, task in enumerate(TASKS)])
    assert (expected[0] - expected[1]).abs().max() > 1e-2

    def one(task):
        def run():
            with torch.set_grad_enabled(grad), model.task(task):
                for _ in range(10):
                    torch.testing.assert_close(model(x), expected[task], rtol=0, atol=1e-5)
                    torch.testing.assert_close(model(x, task=task), expected[task])

        return run

    def mixed():
        with torch.set_grad_enabled(grad):
            for _ in range(5):
                torch.testing.assert_close(model(x, task=TASKS), rows)

    together(*map(one, range(4)), mixed, mixed)


def test_a_thread_does_not_see_the_task_of_another():
    model, x = made(), torch.randn(2, 3, 5, 5)

    def other():
        with pytest.raises(sp.SuperposeError, match="no task was given"):
            model(x)

    with model.task(1):
        together(other)
        model(x)


def test_async_tasks_have_their_own():
    model, x = made(), torch.randn(3, 3, 5, 5)

    async def use(task):
        with model.task(task):
            for _ in range(3):
                await asyncio.sleep(0)
                assert torch.equal(model(x), model(x, task=task))
                await asyncio.sleep(0)
                torch.testing.assert_close(model[0](x), sp.unsuperpose(model, task)[0](x))

    async def both():
        await asyncio.gather(*(use(task) for task in range(4)))

    asyncio.run(both())


def test_a_pass_that_fails_leaves_no_task_behind():
    model, x = made(), torch.randn(3, 3, 5, 5)
    for task in (1, [0, 1, 2]):
        with pytest.raises(RuntimeError):
            model(torch.randn(3, 3), task=task)
        with pytest.raises(sp.SuperposeError, match="no task"):
            model[2](torch.randn(3, 4))
        with pytest.raises(sp.SuperposeError, match="no task"), model.task(1):
            raise sp.SuperposeError("no task of mine")
        with pytest.raises(sp.SuperposeError, match="no task was given"):
            model(x)
