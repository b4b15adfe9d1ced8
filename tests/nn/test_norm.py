"""Norms: running statistics are a task's own."""

import copy

import pytest
import torch
from checks import TASKS, rows_one_by_one, whole_state
from torch import nn

import superpose as sp


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm2d(4),
        lambda: nn.BatchNorm2d(4, momentum=None, affine=False),
        lambda: nn.SyncBatchNorm(4),
        lambda: nn.InstanceNorm2d(4, track_running_stats=True),
    ],
)
def test_running_statistics_are_the_tasks_own(make):
    torch.manual_seed(0)
    norm = make()
    net = nn.Sequential(nn.Conv2d(2, 4, 1), norm)
    model, before = sp.superpose(net, "identity", tasks=2), copy.deepcopy(norm.state_dict())
    for x in torch.randn(3, 5, 2, 6, 6):
        assert torch.equal(model(x, task=1), net(x))
    after = whole_state(model)
    for name, buffer in norm.named_buffers():
        assert torch.equal(after[f"1.{name} of 1"], buffer)
        assert torch.equal(after[f"1.{name} of 0"], before[name])
        assert torch.equal(after[f"1.{name}"], before[name])
    assert norm.running_mean.abs().min() > 0
    with pytest.raises(sp.SuperposeError, match="takes statistics over the rows of the batch"):
        model(x, task=TASKS % 2)
    assert torch.equal(model.eval()(x, task=1), net.eval()(x))
    assert torch.equal(sp.unsuperpose(model, 1)(x), net(x))
    assert (model(x, task=0) - net(x)).abs().max() > 0.01
    torch.testing.assert_close(model(x, task=TASKS % 2), rows_one_by_one(model, TASKS % 2, x))
