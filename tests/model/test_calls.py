"""How many of our Python functions a pass calls: a small network must not wait for them."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import superpose as sp

SOURCE = str(Path(sp.__file__).parent)
ROWS = [0, 1, 2, 3, 0, 1, 2, 3]
X = torch.randn(8, 64)


def made(**options):
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = sp.superpose(net, "binary", tasks=5, **options)
    model.begin(*model.tasks)
    return model


def calls(run, first=False):
    """Functions under src/superpose that one more run calls, or the very first one."""
    for _ in range(0 if first else 3):
        run()
    names = []

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            names.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return names


def no_grad(model, task):
    def run():
        with torch.no_grad():
            model(X, task=task)

    return run


def with_gradients(model):
    return lambda: model(X, task=2)


def training_step(model):
    learns = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(learns, 1e-3)

    def run():
        optimiser.zero_grad()
        model(X, task=2).square().sum().backward()
        optimiser.step()

    return run


@pytest.mark.parametrize(
    ("made_run", "most"),
    [
        (lambda: no_grad(made(), 2), 25),
        (lambda: partial(made(), X, task=2), 30),
        (lambda: no_grad(made(), ROWS), 50),  # direct, as is declared for Sequential
        (lambda: no_grad(made(mixed="grouped"), ROWS), 150),
        (lambda: training_step(made(base=True, rank=2, centre="task").train()), 65),
    ],
    ids=["one task", "with gradients", "direct", "grouped", "a training step"],
)
def test_a_pass_calls_few_functions(made_run, most):
    found = calls(made_run())
    assert 0 < len(found) <= most, found


def test_the_first_mixed_batch_costs_no_more_runs_of_the_network():
    model = made()
    model(X, task=1)
    ran = []
    model[1].register_forward_hook(lambda *_: ran.append(1))
    calls(no_grad(model, ROWS), first=True)
    assert len(ran) == 4  # a hook on a module: its mixed batches are grouped, four tasks
    model = made()
    before = len(calls(no_grad(model, ROWS)))
    again = made()
    assert len(calls(no_grad(again, ROWS), first=True)) <= before + 40  # contexts, the declared way


def test_an_optimiser_of_another_model_runs_none_of_ours():
    model = made()
    model(X, task=ROWS).sum().backward()
    plain = nn.Linear(4, 2)
    optimiser = torch.optim.Adam(plain.parameters())
    plain(torch.ones(3, 4)).sum().backward()
    assert calls(optimiser.step) == []
    assert not optimiser._optimizer_step_pre_hooks
