"""Low-rank parts learn at a rate of their own, which projection does not slow down."""

import dataclasses

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.learning import Quiet, TensorStream, method, train


class Slow(sp.learning.Hook):
    """Asks for a tenth of the pace."""

    pace = 0.1


def problem():
    torch.manual_seed(0)
    x = torch.randn(64, 12)
    y = (x[:, 0] > 0).long()
    stream = TensorStream([(x, y, x, y), (-x, y, -x, y)], period=20, batch_size=16)
    return stream, nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))


def test_each_group_has_its_rate():
    stream, net = problem()
    made = []

    def optimiser(parameters):
        made.append(torch.optim.SGD(parameters, 1e-3))
        return made[-1]

    chosen = dataclasses.replace(method("hadamard", base=True, rank=2), hook=Slow())
    train(net, stream, chosen, optimiser=optimiser, lr=1e-3, rank_lr=1e-2, display=Quiet())
    rates = [group["lr"] for group in made[0].param_groups]
    assert rates == pytest.approx([1e-4, 1e-2])


def test_a_model_without_low_rank_parts_has_no_rate_for_them():
    stream, net = problem()
    for name in ("standard", "hadamard"):
        with pytest.raises(sp.SuperposeError, match="no low-rank parts"):
            train(net, stream, name, rank_lr=1e-2, display=Quiet())
    with pytest.raises(sp.SuperposeError, match="rank_lr=-1"):
        train(net, stream, method("hadamard", rank=2), rank_lr=-1, display=Quiet())
