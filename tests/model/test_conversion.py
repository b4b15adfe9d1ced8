"""Conversion: it copies, keeps names and shapes, and can be undone (laws 5 and 6)."""

import copy
import inspect

import pytest
import torch
from cases import every_family
from checks import randomise_private
from networks import MLP, cnn, mlp
from torch import nn

import superpose as sp
from superpose.nn import Layer


def test_the_signature_has_the_task():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x, *more, scale=1.0, **options):
            return self.layer(x) * scale

    model = sp.superpose(Net(), tasks=2)
    assert str(inspect.signature(model.forward)) == "(x, *more, scale=1.0, task=None, **options)"
    assert str(inspect.signature(Net().forward)) == "(x, *more, scale=1.0, **options)"


def test_a_layer_in_two_places_is_one_layer():
    layer = nn.Linear(6, 6)
    net = nn.Sequential(nn.Sequential(layer, nn.ReLU()), nn.Sequential(layer))
    model = sp.superpose(net, tasks=["a", "b"])
    assert model.cost().stored == sp.superpose(nn.Sequential(layer), tasks=2).cost().stored
    model.remove_task("a")
    x = torch.randn(3, 6)
    torch.testing.assert_close(model(x, task="b"), sp.unsuperpose(model, "b")(x))


def test_a_layer_with_two_names_is_told_once():
    layer = nn.Linear(4, 4)
    model = sp.superpose(nn.Sequential(layer, nn.ReLU(), layer), tasks=3)
    assert model.summary().superposed == ["0.weight"]
    assert model.summary().private == ["0.bias"]
    assert model.summary().shared == []


def test_law_6_conversion_copies():
    net = mlp()
    before = copy.deepcopy(net.state_dict())
    model = sp.superpose(net, tasks=2)
    model(torch.randn(4, 12), task=0).sum().backward()
    torch.optim.SGD(model.parameters(), 1.0).step()
    assert type(net) is MLP
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert isinstance(model, MLP)


@every_family
def test_unsuperpose_gives_the_plain_module_back_and_reads_tasks_out(family):
    net = mlp()
    model = randomise_private(sp.superpose(net, family, tasks=3))
    x = torch.randn(4, 12)
    complex_valued = family in ("complex", "onepower")
    for task in range(3):
        plain = sp.unsuperpose(model, task)
        assert type(plain) is MLP
        assert plain.state_dict().keys() == net.state_dict().keys()
        assert not any(isinstance(module, Layer) for module in plain.modules())
        output = plain(x + 0j).real if complex_valued else plain(x)
        torch.testing.assert_close(output, model(x, task=task))
    if not complex_valued:
        plain = sp.unsuperpose(sp.superpose(net, family, tasks=3))
        assert all(
            torch.equal(a, b)
            for a, b in zip(plain.state_dict().values(), net.state_dict().values(), strict=True)
        )
        assert all(parameter.requires_grad for parameter in plain.parameters())
        assert repr(plain) == repr(net)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "nonsense"}, "unknown family 'nonsense'"),
        ({"family": "hadamard+projection"}, "is a method of sp.learning.* alone, 'hadamard', here"),
        ({"tasks": 0}, "tasks is empty"),
        ({"tasks": "cats"}, "tasks='cats': give several names, as in \\['cats'\\]"),
        ({"skip": "layers"}, "skip='layers': give several names"),
        ({"private_layers": "layers"}, "private_layers='layers': give several names"),
        ({"seed": 1.5}, "seed=1.5: give a whole number"),
        ({"tasks": ["a", "a"]}, "two tasks cannot both be called 'a'"),
        ({"tasks": ["a", ""]}, "'' cannot name a task"),
        ({"tasks": ["a", -1]}, "-1 cannot name a task"),
        ({"tasks": 2.0}, "tasks=2.0: give a number of tasks"),
        ({"private": "mine"}, "private='mine': use one of per-task, shared, none"),
        ({"conv": "pixel"}, "conv='pixel': use one of kernel, channel"),
        ({"skip": ["layers.9"]}, "skip: there is no layer 'layers.9'; there are 'layers'"),
        ({"private_layers": ["x"]}, "private_layers: there is no layer 'x'"),
        ({"skip": ["layers"]}, "has no layer to superpose"),
        ({"mixed": "auto"}, "mixed='auto': use 'grouped'"),
        ({"learn": ["layers.1.weight"]}, "learn: without a base all that tasks share learns"),
        ({"rank": -1}, "rank=-1: give a whole number"),
        ({"centre": "mean"}, "centre='mean': use 'task' or 'rows'"),
        ({"base": True, "learn": ["none"]}, "learn: there is no layer 'none'"),
        ({"batch_dim": {"msk": None}}, "has no argument 'msk'; it has x"),
        ({"batch_dim": {"return": [0, 3]}}, r"batch_dim=.*use 0 or 1"),
        ({"tasks": True}, "tasks=True: give a number of tasks, or names"),
        ({"batch_dim": 2}, "batch_dim=2: use 0 or 1, the dimension of the rows"),
        ({"batch_dim": {"input": 0, "mask": 2}}, r"batch_dim=\{'mask': 2\}: use 0 or 1"),
        ({"family": "permutation", "learnable": True}, "has no numbers to learn"),
    ],
)
def test_bad_options_say_what_to_do(options, message):
    with pytest.raises(sp.SuperposeError, match=message):
        sp.superpose(mlp(), **options)


class Routed(nn.Module):
    """A network that has tasks of its own."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))

    def forward(self, x, task=0):
        return self.heads[task](x)


def test_models_that_cannot_be_converted_say_why():
    with pytest.raises(sp.SuperposeError, match="ReLU has no layer to superpose"):
        sp.superpose(nn.ReLU())
    with pytest.raises(sp.SuperposeError, match="superposed already"):
        sp.superpose(sp.superpose(mlp()))
    for options in ({}, {"skip": ["0"]}):
        with pytest.raises(sp.SuperposeError, match="'0' is superposed already, with tasks of its"):
            sp.superpose(nn.Sequential(sp.superpose(mlp()), nn.Linear(5, 2)), **options)
    with pytest.raises(sp.SuperposeError, match="is not superposed"):
        sp.unsuperpose(mlp())
    with pytest.raises(sp.SuperposeError, match="'0' is lazy"):
        sp.superpose(nn.Sequential(nn.LazyLinear(4)))
    with pytest.raises(sp.SuperposeError, match="LayerNorm '1' has no complex-valued form"):
        sp.superpose(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "complex")
    net = mlp()
    net.tasks = 3
    with pytest.raises(sp.SuperposeError, match="already has 'tasks'"):
        sp.superpose(net)
    with pytest.raises(sp.SuperposeError, match="forward of Routed takes a task"):
        sp.superpose(Routed())
    with pytest.raises(sp.SuperposeError, match="call model\\(x, task=…\\)"):
        sp.superpose(mlp()).layers(torch.randn(2, 12))


def test_a_single_layer_is_a_model():
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    model = sp.superpose(net, "hadamard", tasks=2)
    x = torch.randn(4, 6)
    assert model.state_dict().keys() >= net.state_dict().keys()
    torch.testing.assert_close(sp.unsuperpose(model, 1)(x), model(x, task=1))
    assert type(sp.unsuperpose(model)) is nn.Linear


@pytest.mark.parametrize("make", [mlp, cnn])
def test_what_was_unsuperposed_can_be_superposed_again(make):
    net = make().eval()
    model = sp.superpose(sp.unsuperpose(sp.superpose(net, tasks=2)), tasks=2)
    x = torch.randn(6, 12) if make is mlp else torch.randn(6, 3, 6, 6)
    assert torch.equal(model(x, task=1), sp.superpose(net, tasks=2)(x, task=1))
    first, again = next(net.children()), next(sp.unsuperpose(model).children())
    assert vars(first).keys() == vars(again).keys()


def test_what_a_base_froze_learns_again_in_the_plain_module():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
            self.hidden, self.left = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x):
            return self.head(self.norm(self.left(self.hidden(self.table(x)).relu())))

    net, x = Text(), torch.randint(11, (4, 5))
    learns = {name: p.requires_grad for name, p in net.named_parameters()}
    model = sp.superpose(net, "hadamard", tasks=2, base=True)
    assert not model.table.weight.requires_grad
    base = sp.unsuperpose(model)
    assert base.head.weight is base.table.weight
    assert torch.equal(base(x), net(x))
    assert {name: p.requires_grad for name, p in base.named_parameters()} == learns
    assert sp.unsuperpose(model, 1).head.weight.requires_grad  # still the table, as it is closed
    model.begin(1)
    own = {name: p.requires_grad for name, p in sp.unsuperpose(model, 1).named_parameters()}
    assert own == learns | {"head.weight": True}
