"""Training: a step in superposition (law 8), and activations that are computed again."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import every_family
from checks import randomise_private
from networks import mlp
from torch import nn
from torch.utils.checkpoint import checkpoint

import superpose as sp


@every_family
def test_law_8_a_step_in_superposition_is_the_step_outside(family):
    """Proposition 3: the read-out of task k moves as if its model were trained alone."""
    model = sp.superpose(mlp(dtype=torch.float64), family, tasks=4)
    alone = sp.unsuperpose(model, 2)
    x, y = torch.randn(8, 12, dtype=torch.float64), torch.arange(8) % 5
    complex_valued = family in ("complex", "onepower")

    def step(module, output):
        F.cross_entropy(output, y).backward()
        torch.optim.SGD(module.parameters(), 0.5).step()

    before = copy.deepcopy(alone.state_dict())
    step(model, model(x, task=2))
    step(alone, alone(x + 0j).real if complex_valued else alone(x))
    moved = sp.unsuperpose(model, 2).state_dict()
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(moved[name], expected, rtol=1e-10, atol=1e-10)
        assert (expected - before[name]).abs().max() > 1e-4


class Recomputed(nn.Module):
    """Computes its activations again in the backward pass, if there is a way to."""

    def __init__(self, way):
        super().__init__()
        self.net, self.way = mlp(), way

    def forward(self, x):
        return self.way(self.net, x) if self.way else self.net(x)


@every_family
def test_what_is_computed_again_has_the_task_it_had(family):
    again = partial(checkpoint, use_reentrant=False, context_fn=sp.same_task)
    model = randomise_private(sp.superpose(Recomputed(again), family, tasks=4))
    kept, x = copy.deepcopy(model), torch.randn(5, 12)
    kept.way = None
    for tasks in ([1, 2], [torch.tensor([2, 0, 1, 2, 3]), 3]):
        for one in (model, kept):
            one.zero_grad()
            loss = sum(one(x, task=task).square().sum() for task in tasks)
            loss.backward(retain_graph=True)
            loss.backward()
        for own, other in zip(model.parameters(), kept.parameters(), strict=True):
            assert (own.grad is None) == (other.grad is None)
            if own.grad is not None:
                torch.testing.assert_close(own.grad, other.grad)
    kept.way = partial(checkpoint, use_reentrant=False)
    with pytest.raises(sp.SuperposeError, match=r"context_fn=superpose\.same_task"):
        (kept(x, task=1).sum() + kept(x, task=2).sum()).backward()
