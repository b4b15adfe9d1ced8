"""Training: a step in superposition (law 8)."""

import copy

import torch
import torch.nn.functional as F
from cases import every_family
from networks import mlp

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
