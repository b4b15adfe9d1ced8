"""Private tensors: modes, private layers, tied and frozen parameters."""

from functools import partial

import pytest
import torch
from checks import randomise_private, rows_one_by_one, whole_state
from networks import cnn
from torch import nn

import superpose as sp


def test_private_modes():
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    none = sp.superpose(net, private="none")
    assert list(none.state_dict()) == ["0.weight", "2.weight", "private_state.tasks_begun"]
    x = torch.randn(8, 4)
    assert none.eval()(x, task=1).mean(0).shape == (2,)
    shared = sp.superpose(net, private="shared")
    assert shared.state_dict().keys() - {"private_state.tasks_begun"} == net.state_dict().keys()
    own = sp.superpose(net)  # per task
    own(x, task=1)
    state = whole_state(own)
    assert state["1.running_mean of 0"].abs().sum() == 0
    assert state["1.running_mean of 1"].abs().sum() > 0
    assert state["1.running_mean"].abs().sum() == 0
    assert "superposed: 0.weight, 2.weight" in str(own.summary())
    assert own.summary().private[:2] == ["0.bias", "1.weight"]
    assert none.summary().private == []


@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1),
        partial(torch.optim.RMSprop, lr=0.1, momentum=0.9, weight_decay=0.1),
        partial(torch.optim.Adam, lr=0.1, weight_decay=0.1, foreach=True),
        partial(torch.optim.Adam, lr=0.1, fused=True),
        partial(torch.optim.Adagrad, lr=0.1, weight_decay=0.1),
    ],
    ids=["sgd", "adamw", "rmsprop", "foreach", "fused", "adagrad"],
)
def test_an_optimiser_made_once_trains_every_task_and_moves_no_other(make):
    model = sp.superpose(cnn(), tasks=5)
    optimiser = make(model.parameters())
    for task in (3, 1, 3):
        before = whole_state(model)
        for _ in range(2):
            optimiser.zero_grad()
            model(torch.randn(4, 3, 6, 6), task=task).square().mean().backward()
            optimiser.step()
        for name, tensor in whole_state(model).items():
            if " of " in name:
                assert torch.equal(tensor, before[name]) != name.endswith(f" of {task}"), name


def test_private_layers_and_skip():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 6), nn.Linear(6, 3))
    model = sp.superpose(net, tasks=3, private_layers=["0", "3"], skip=[])
    randomise_private(model)
    ids, tasks = torch.randint(0, 7, (5, 3)), torch.tensor([2, 0, 1, 1, 0])
    torch.testing.assert_close(model(ids, task=tasks), rows_one_by_one(model, tasks, ids))
    assert model.summary().superposed == ["2.weight"]
    assert model.summary().private == ["0.weight", "2.bias", "3.weight", "3.bias"]
    skipped = sp.superpose(net, tasks=3, skip=["3"])
    assert skipped.summary().superposed == ["2.weight"]
    assert skipped.summary().shared == ["0.weight", "3.weight", "3.bias"]


class Tied(nn.Module):
    """A table and a head of one weight, and two layers of one bias."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 6), nn.Linear(6, 7)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.head.weight, self.second.bias = self.words.weight, self.first.bias

    def forward(self, ids):
        return self.head(self.second(self.first(self.words(ids)).relu()))


def trained_names(module):
    named = module.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if parameter.requires_grad}


WEIGHT, BIAS = {"words.weight", "head.weight"}, {"first.bias", "second.bias"}


@pytest.mark.parametrize(
    ("options", "in_use"),
    [
        ({}, WEIGHT),
        ({"private_layers": ["words"]}, WEIGHT),
        ({"private_layers": ["head"]}, WEIGHT),
        ({"private_layers": ["words", "head"]}, set()),
        ({"skip": ["first"]}, WEIGHT | BIAS),
        ({"skip": ["second"]}, WEIGHT | BIAS),
        ({"private": "shared"}, WEIGHT | BIAS | {"head.bias"}),
    ],
)
def test_a_tied_parameter_learns_wherever_something_uses_it(options, in_use):
    torch.manual_seed(0)
    net = Tied()
    model = sp.superpose(net, tasks=2, **options)
    trained = trained_names(model)
    assert {n for n in trained if "private" not in n} == {"first.weight", "second.weight"} | in_use
    ids = torch.arange(7)
    model(ids, task=1).square().sum().backward()
    got = {name for name in trained if model.get_parameter(name).grad is not None}
    assert got == {name for name in trained if not name.endswith(".0")}
    for task in (None, 1):
        assert trained_names(sp.unsuperpose(model, task)) == trained_names(net)
    assert sp.unsuperpose(model).state_dict().keys() == net.state_dict().keys()


def test_a_frozen_parameter_is_frozen_for_each_task():
    net = Tied()
    net.words.weight.requires_grad_(False)
    model = sp.superpose(net, tasks=2, private_layers=["words", "head"])
    assert {n for n in trained_names(model) if "weight" in n} == {"first.weight", "second.weight"}
    for task in (None, 1):
        assert trained_names(sp.unsuperpose(model, task)) == trained_names(net)


class Headed(nn.Module):
    """A network with a head, which is the last layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 32))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x))


def changed(model, start):
    """The private tensors of task 0 that a step changed."""
    model.begin(0)
    optimiser = torch.optim.Adam(model.parameter_groups(1e-2))
    for _ in range(2):
        optimiser.zero_grad()
        model(torch.randn(8, 16), task=0).square().mean().backward()
        optimiser.step()
    return {n for n, t in model.private_tensors(0).items() if not torch.equal(t, start[n])}


@pytest.mark.parametrize("options", [{}, {"base": True, "rank": 2, "private_layers": ["head"]}])
def test_what_is_frozen_before_stays_frozen(options):
    torch.manual_seed(0)
    net = Headed()
    net.body[:2].requires_grad_(False)
    model = sp.superpose(net, "hadamard", tasks=2, **options)
    start = {name: tensor.clone() for name, tensor in model.private_tensors(0).items()}
    assert "body.0.weight_up" not in start
    learned = changed(model, start)
    assert {"body.2.bias", "head.bias"} <= learned
    assert not any(name.startswith(("body.0", "body.1")) for name in learned)
    assert torch.equal(sp.unsuperpose(model, 0).body[0].weight, net.body[0].weight)


def test_freezing_parts_afterwards_goes_by_where_private_tensors_are():
    torch.manual_seed(0)
    model = sp.superpose(Headed(), "hadamard", tasks=2, base=True)
    start = {name: tensor.clone() for name, tensor in model.private_tensors(0).items()}
    model.body.requires_grad_(False)
    assert {"body.0.bias", "body.2.bias", "head.bias"} <= changed(model, start)
    model.private_state.requires_grad_(False)
    assert model.private_parameters(0) == []


@pytest.mark.parametrize("options", [{"private_layers": ["head"]}, {"min_inputs": 64}])
def test_where_all_that_learns_is_private_there_is_nothing_to_superpose(options):
    net = Headed()
    net.body.requires_grad_(False)
    message = r"nothing to superpose: all that learns in it, head\.weight, is each .*bind_frozen="
    with pytest.raises(sp.SuperposeError, match=message):
        sp.superpose(net, "hadamard", tasks=2, base=True, **options)
    bound = sp.superpose(net, tasks=2, private_layers=["head"], bind_frozen=True)
    assert bound.summary().superposed == ["body.0.weight", "body.2.weight"]
    net.head.requires_grad_(False)
    with pytest.raises(sp.SuperposeError, match=r"no layer to superpose.*bind_frozen=True"):
        sp.superpose(net, "hadamard", tasks=2, base=True, **options)
