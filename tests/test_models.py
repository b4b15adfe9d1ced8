"""The networks of the paper."""

import torch
from checks import TASKS, randomise_private, rows_one_by_one

import superpose as sp
from superpose_lab.networks import ResNet18


def test_the_papers_resnet():
    torch.manual_seed(0)
    net = ResNet18(width=4)
    model = sp.superpose(net, tasks=3, private="none", skip=["stem"])
    x = torch.randn(4, 3, 32, 32)
    assert "stem.weight" in model.summary().shared
    assert len(model.summary().superposed) == 20
    assert not any("norm" in name or "bias" in name for name in model.state_dict())
    assert model(x, task=2).shape == (4, 10)
    assert (model(x, task=2) - model(x, task=1)).abs().max() > 0.01
    per_task = randomise_private(sp.superpose(net, tasks=4, skip=["stem"])).eval()
    rows = torch.randn(len(TASKS), 3, 16, 16)
    torch.testing.assert_close(
        per_task(rows, task=TASKS), rows_one_by_one(per_task, TASKS, rows), rtol=1e-3, atol=1e-4
    )
    assert sp.superpose(net, "complex", private="none")(x, task=1).shape == (4, 10)
