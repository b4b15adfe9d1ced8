"""Networks that use their layers in ways of their own: a forward of their own."""

import copy

import pytest
import torch
import torch.nn.functional as F
from checks import TASKS, learn, learned_gradients, randomise_private, rows_one_by_one
from customised import (
    Masked,
    NormAct,
    OwnBatchNorm,
    OwnLinear,
    Standardised,
)
from modules import Words
from torch import nn

import superpose as sp


def test_what_a_customised_layer_adds_is_private_but_not_its_constants():
    model = sp.superpose(nn.Sequential(Standardised(4, 6, 3), nn.Flatten(), Masked(54, 3)), tasks=2)
    assert model.summary().superposed == ["0.weight", "2.weight"]
    assert model.summary().private == ["0.bias", "0.gain", "2.bias"]
    assert model.summary().shared == ["2.mask"]
    shared = sp.superpose(nn.Sequential(Standardised(4, 6, 3)), tasks=2, private="shared")
    assert shared.summary().shared == ["0.bias", "0.gain"]
    layers = (Standardised(4, 6, 3), NormAct(6), nn.Flatten(), OwnLinear(54, 3))
    none = sp.superpose(nn.Sequential(*layers), tasks=2, private="none")
    assert none.summary().superposed == ["0.weight", "3.kernel"]
    assert [n for n in none.summary().shared if not n.startswith("1.")] == ["0.gain", "3.offset"]
    assert none(torch.randn(5, 4, 5, 5), task=1).isfinite().all()


def test_a_layer_that_writes_into_its_weight_leaves_the_others_weights_alone():
    model = sp.superpose(nn.Sequential(Masked(6, 6)), tasks=3)
    before = copy.deepcopy(model.state_dict())
    products = model(torch.eye(6), task=1).T - model.private_tensors(1)["0.bias"][:, None]
    torch.testing.assert_close(products, products.tril())
    assert products.diagonal().abs().min() > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    x = torch.randn(5, 6)
    tasks = [0, 1, 2, 1, 0]
    model.mixed = "grouped"
    torch.testing.assert_close(model(x, task=tasks), rows_one_by_one(model, tasks, x))
    model.mixed = "direct"
    with pytest.raises(sp.SuperposeError, match=r"'0' cannot be mapped over rows.*'grouped'"):
        model(x, task=tasks)


def test_statistics_that_are_set_anew_are_the_tasks_own():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(7, 6), OwnBatchNorm(6)), torch.randn(5, 7)
    model = sp.superpose(net, "identity", tasks=3, private_layers=["1"])
    for _ in range(2):
        model(x, task=1)
        net(x)
    means = [model.private_tensors(task)["1.mean"] for task in range(3)]
    assert torch.equal(means[1], net[1].mean)
    assert means[2].abs().max() == means[0].abs().max() == 0
    for way in ("grouped", "direct"):  # each task takes those of its own rows
        twin = copy.deepcopy(model)
        twin.mixed = way
        y = twin(x, task=[0, 1, 2, 2, 1])
        plain = copy.deepcopy(net)
        torch.testing.assert_close(y[[1, 4]], plain(x[[1, 4]]))
        torch.testing.assert_close(twin.private_tensors(1)["1.mean"], plain[1].mean)


class Running(nn.Module):
    """Multiplies by statistics that it writes to, so that its gradient needs them as they were."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("mean", torch.ones(6))

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x * self.mean * self.scale


def test_statistics_of_one_layer_do_not_outdate_those_of_another():
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Linear(7, 6), Running(), nn.Linear(6, 6), Running()),
        torch.randn(5, 7),
    )
    model = sp.superpose(net, "identity", tasks=2, private_layers=["1", "3"])
    model(x, task=1).square().sum().backward()
    net(x).square().sum().backward()
    assert torch.equal(learned_gradients(model)["1.scale of 1"], net[1].scale.grad)
    assert torch.equal(model.private_tensors(1)["3.mean"], net[3].mean)


class Remembering(nn.Linear):
    """Sets attributes and a constant anew whenever it runs."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.register_buffer("scale", torch.ones(()))
        self.calls = 0

    def forward(self, x):
        self.scale = 0.5 * self.scale + x.abs().mean()
        self.calls += 1
        self.last = F.linear(x / self.scale, self.weight, self.bias)
        return self.last


def test_what_a_forward_sets_stays_set():
    torch.manual_seed(0)
    net, x = nn.Sequential(Remembering(7, 6)), torch.randn(5, 7)
    model = sp.superpose(net, "identity", tasks=3)
    for task in range(3):
        assert torch.equal(model(x, task=task), net(x))
    assert model[0].calls == net[0].calls == 3
    assert torch.equal(model[0].scale, net[0].scale)
    assert torch.equal(model[0].last, net[0].last)
    assert model.state_dict().keys() - {"private_state.tasks_begun"} == net.state_dict().keys()


def test_what_looks_up_and_what_reads_its_weights_elsewhere_is_left_alone():
    class OwnGRU(nn.GRU):
        def forward(self, x):
            return super().forward(x)[0]

    class Bag(nn.EmbeddingBag):
        def forward(self, x):
            return super().forward(x)

    net = nn.Sequential(Bag(5, 4), nn.Unflatten(1, (1, 4)), OwnGRU(4, 4), nn.Linear(4, 2))
    with pytest.warns(match="^2 stay shared"):
        model = sp.superpose(net, tasks=2)
    assert model.summary().superposed == ["3.weight"]
    assert model(torch.zeros(2, 3, dtype=torch.int64), task=1).shape == (2, 1, 2)


def test_a_private_tensor_may_have_any_name():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.keys = nn.Linear(6, 6), nn.Parameter(torch.zeros(6))
            self.values = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return self.layer(x + self.keys) * self.values

    own = ["keys", "values"]
    model = randomise_private(sp.superpose(Memory(), tasks=4, private_layers=own))
    x = torch.randn(5, 6)
    assert {"keys", "values"} <= model.private_tensors(2).keys()
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


def test_a_quantised_weight_is_left_alone():
    class Packed4(nn.Linear):
        def __init__(self):
            super().__init__(8, 6)
            self.weight = nn.Parameter(torch.zeros(24, dtype=torch.uint8), requires_grad=False)

        def forward(self, x):
            return x[..., :6] + self.bias

    model = sp.superpose(nn.Sequential(Packed4(), nn.Linear(6, 3)), tasks=2)
    assert model.summary().superposed == ["1.weight"]
    assert "0.weight" in model.summary().shared


def test_vectors_and_tables_beside_layers_are_shared_and_learn():
    """Without a base; a task has its own of those that are named."""
    x = torch.randint(9, (5, 3))
    model = sp.superpose(Words(), tasks=4)
    assert model.summary().private == ["body.bias", "head.bias"]
    beside = ["token", "scale", "words.weight", "places.weight"]
    assert model.summary().shared == model.summary().learns == beside
    assert "shared by all tasks, and learns: token, scale, words.weight" in str(model.summary())
    before = {name: model.get_parameter(name).clone() for name in beside}
    learn(model, x, 1)
    assert not any(torch.equal(model.get_parameter(name), old) for name, old in before.items())
    own = randomise_private(sp.superpose(Words(), tasks=4, private_layers=["token", "pl*"]))
    assert set(own.summary().private) == {"token", "places.weight", "body.bias", "head.bias"}
    torch.testing.assert_close(own(x, task=TASKS), rows_one_by_one(own, TASKS, x))
    own.mixed = "direct"  # of a network that has a tensor itself, the whole pass is mapped
    torch.testing.assert_close(own(x, task=TASKS), rows_one_by_one(own, TASKS, x))
