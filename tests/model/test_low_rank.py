"""Directions that a task has for itself, and small layers that are its own as a whole."""

import pytest
import torch
from checks import rows_one_by_one
from networks import mlp
from torch import nn

import superpose as sp


def test_the_low_rank_part_starts_as_that_of_lora():
    model = sp.superpose(mlp(), "hadamard", tasks=2, rank=2, seed=3)
    plain = sp.superpose(mlp(), "hadamard", tasks=2, seed=3)
    x = torch.randn(4, 12)
    assert torch.equal(model(x, task=1), plain(x, task=1))
    own = model.private_tensors(1)
    down, up = own["layers.1.weight_down"], own["layers.1.weight_up"]
    assert down.shape == (2, 12)
    assert up.shape == (16, 2)
    assert not up.any()
    assert down.abs().max() <= 12**-0.5
    assert down.detach().std().item() == pytest.approx((12 * 3) ** -0.5, rel=0.3)
    other = sp.superpose(mlp(), "hadamard", tasks=2, rank=2, seed=4).private_tensors(1)
    assert not torch.equal(down, other["layers.1.weight_down"])
    assert not torch.equal(down[:, :4].flatten(), own["layers.3.weight_down"][:, :4].flatten())


def test_a_low_rank_part_is_counted():
    net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 2))
    model = sp.superpose(net, tasks=3, rank=3)
    assert model.summary().low_rank == ["0.weight"]  # 3 · (30 + 2) is more than 30 · 2
    assert model.cost().private_per_task == 3 * (20 + 30) + 30 + 2
    assert "each task also has: a low-rank part for 1 weight" in str(model.summary())
    for wrong in (-1, 1.5, True):
        with pytest.raises(sp.SuperposeError, match="rank="):
            sp.superpose(net, rank=wrong)


def test_layers_with_few_inputs_are_private():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 80, 1), nn.Conv2d(80, 8, 1),
        nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    model = sp.superpose(net, "hadamard", tasks=2, min_inputs=64)
    assert model.summary().superposed == ["3.weight", "5.weight"]
    own = [name for name in model.summary().private if name.endswith("weight")]
    assert own == ["0.weight", "1.weight", "2.weight"]
    sizes = sum(net.get_parameter(name).numel() for name in own)
    biases = sum(p.numel() for n, p in net.named_parameters() if n.endswith("bias"))
    assert model.cost().private_per_task == sizes + biases
    assert sp.superpose(net, tasks=2, min_inputs=27).summary().superposed[0] == "0.weight"
    x = torch.randn(3, 3, 8, 8)
    rows = [1, 0, 1]
    torch.testing.assert_close(
        model(x, task=rows), rows_one_by_one(model, rows, x), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(sp.SuperposeError, match="min_inputs=999 makes layers"):
        sp.superpose(net, tasks=2, min_inputs=999)


def test_every_expert_has_a_low_rank_part():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 8, 6))  # (experts, inputs, outputs)

        def forward(self, x):
            return (x @ self.weight).mean(0)

    sp.nn.register(Experts, {"weight": -2})
    net, x = nn.Sequential(Experts()), torch.randn(3, 8)
    model = sp.superpose(net, "hadamard", tasks=2, base=True, rank=2)
    model.begin(1)
    own = model.private_tensors(1)
    assert own["0.weight_down"].shape == (4, 2, 8)
    assert own["0.weight_up"].shape == (4, 6, 2)
    with torch.no_grad():
        own["0.weight_up"] += 1
    expected = net[0].weight + (own["0.weight_up"] @ own["0.weight_down"]).mT
    torch.testing.assert_close(model(x, task=1), (x @ expected).mean(0))


def test_a_layer_that_has_the_name_of_an_addition_is_refused():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.gate_up = (nn.Parameter(torch.randn(8, 8)) for _ in range(2))

        def forward(self, x):
            return (x @ self.gate.T).sigmoid() * (x @ self.gate_up.T)

    sp.nn.register(Gated, {"gate": -1, "gate_up": -1})
    net = nn.Sequential(Gated(), nn.Linear(8, 8))
    with pytest.raises(sp.SuperposeError, match=r"Gated '0' already has 'gate_up'.*skip"):
        sp.superpose(net, tasks=2, rank=2)
    assert sp.superpose(net, tasks=2, base=True).summary().superposed[:2] == ["0.gate", "0.gate_up"]
