"""Contexts that are learned."""

import pytest
import torch
from checks import learn, randomise_private, whole_state
from torch import nn

import superpose as sp


@pytest.mark.parametrize("family", ["complex", "onepower", "phase", "rotation", "block-rotation"])
def test_learned_contexts_that_are_frozen_stay_what_they_are(family):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    model = randomise_private(sp.superpose(net, family, tasks=2, learnable=True))
    x = torch.randn(5, 32)
    expected, mixed = model(x, task=1), model(x, task=[0, 1, 1, 0, 1])
    model.requires_grad_(False)
    assert torch.equal(model(x, task=1), expected)
    assert torch.equal(model(x, task=[0, 1, 1, 0, 1]), mixed)
    state = {name: tensor.expand(3, *tensor.shape) for name, tensor in model.state_dict().items()}

    def run(state):
        return torch.func.functional_call(model, state, (x,), {"task": 1})

    torch.testing.assert_close(torch.func.vmap(run)(state), expected.expand(3, 5, 4))
    plain = sp.unsuperpose(model, 1)
    dtypes = {name: tensor.dtype for name, tensor in plain.state_dict().items()}
    assert dtypes == {name: model.state_dict()[name].dtype for name in dtypes}


@pytest.mark.parametrize("family", ["complex", "phase", "rotation"])
def test_learned_contexts_start_as_those_that_are_drawn(family):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(5, 8)
    model = sp.superpose(net, family, tasks=2, learnable=True)
    fixed = sp.superpose(net, family, tasks=2)
    torch.testing.assert_close(model(x, task=1), fixed(x, task=1))
    learn(model, x, 1)
    own = whole_state(model)
    assert own["0.weight_context of 1"].abs().max() > 1e-3
    assert not own["0.weight_context of 0"].any()
    context = model.view(1).layers["0"].contexts["weight"]
    torch.testing.assert_close(context.unbind(context.bind(x)).real, x)
