"""Contexts that are learned."""

import pytest
import torch
from checks import randomise_private, whole_state
from torch import nn

import superpose as sp


@pytest.mark.parametrize(
    "family", ["binary", "complex", "phase", "hadamard", "rotation", "onepower"]
)
def test_learned_contexts_are_private_and_trained(family):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model = sp.superpose(net, family, tasks=2, learnable=True)
    fixed = sp.superpose(net, family, tasks=2)
    x = torch.randn(5, 8)
    torch.testing.assert_close(model(x, task=1), fixed(x, task=1))
    before = whole_state(model)
    output = model(x, task=1)
    output.square().sum().backward()
    torch.optim.SGD(model.parameters(), 0.05).step()
    after = whole_state(model)
    own, other = "0.weight_context of 1", "0.weight_context of 0"
    assert (after[own] - before[own]).abs().max() > 0
    assert torch.equal(after[other], before[other])
    torch.testing.assert_close(
        model(x[:2], task=[0, 1]), torch.cat([model(x[:1], task=0), model(x[1:2], task=1)])
    )
    plain = sp.unsuperpose(model, 1)
    found = plain(x + 0j).real if family in ("complex", "onepower") else plain(x)
    torch.testing.assert_close(found, model(x, task=1))
    if family not in ("binary", "hadamard"):  # relaxed signs are no rotation any more
        selected = model.selection(1).layers["0"].contexts["weight"]
        torch.testing.assert_close(selected.unbind(selected.bind(x)).real, x)


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
