"""What is private, what is shared, and what cannot be packed."""

import copy

import pytest
import torch
from networks import MLP, inputs, mlp, nets
from packing.problems import Attending, error, every_method, fitted
from torch import nn

import superpose as sp


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.fixed = nn.Linear(16, 16)
        self.own = nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(self.own(self.fixed(self.words(ids)).relu()))


@every_method
def test_what_is_the_same_is_kept_once_and_tables_are_private(method):
    models = nets(Words, "ab")
    for net in models.values():
        net.head.weight = net.words.weight
        net.fixed.load_state_dict(models["a"].fixed.state_dict())
    ids = torch.arange(20).view(10, 2)
    packed = sp.pack(models, method=method, **fitted(method, dict.fromkeys("ab", ids)))
    summary = packed.summary()
    assert "fixed.weight" in summary.shared
    assert {"words.weight", "head.weight"} <= set(summary.private)
    for name, net in models.items():
        if method == "solve":
            assert error(packed, net, name, ids) < 0.5
        assert torch.equal(packed.words.private["weight"].of("ab".index(name)), net.words.weight)
    assert packed.cost().private_per_task == 2 * 20 * 16 + 16
    other = copy.deepcopy(models["a"])
    other.fixed.bias.data.add_(1)
    with pytest.raises(sp.SuperposeError, match=r"fixed\.\w+ is shared by all stored models"):
        packed.add("c", other)


def tied():
    net = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12))
    net[2].weight = net[0].weight
    return net


def test_one_of_two_tied_layers_can_be_private():
    models, x = {"a": tied(), "b": tied()}, inputs("ab", 4, (12,))
    packed = sp.pack(models, calibration=x, private_layers=["2"])
    for name, net in models.items():
        torch.testing.assert_close(packed(x[name], task=name), net(x[name]), rtol=1e-3, atol=1e-3)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("count", torch.zeros(1))
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x * self.scale)


def spoiled(value):
    net = mlp()
    net.layers[1].weight.data[0, 0] = value
    return net


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        ({}, {}, "there is no model to pack"),
        ([mlp()], {}, "the models to pack are a list: give a mapping from names to models"),
        (mlp(), {}, "the models to pack are a MLP: give a mapping from names to models"),
        ({"a": 3}, {}, "model 'a' is a int: give a plain module"),
        ({"a": lambda: 3}, {}, "model 'a' is a int: give a plain module"),
        ({"a": Scaled}, {}, "model 'a' is the class Scaled, .* give a module, with its weights"),
        ({"a": sp.superpose(mlp())}, {}, "give a plain module"),
        ({"": mlp()}, {}, "cannot name a task"),
        ({"a": mlp(), "b": mlp(bias=False)}, {}, r"'b' has no layers.1.bias: .* one architecture"),
        ({"a": mlp(bias=False), "b": mlp()}, {}, r"'b' has another tensor, layers.1.bias"),
        ({"a": mlp(), "b": MLP(12, 20, 5, bias=True)}, {}, r"\(20, 12\) .* \(16, 12\)"),
        ({"a": mlp(), "b": mlp().double()}, {}, "float64, and .* float32 in the others"),
        ({"a": spoiled(float("nan"))}, {}, r"'a': layers.1.weight holds numbers that are not fin"),
        ({"a": spoiled(float("inf"))}, {}, "not finite"),
        ({"a": mlp()}, {"method": "average"}, "method='average': use one of solve, sum, delta"),
        ({"a": mlp()}, {"family": "complex"}, "'complex' makes networks complex-valued.*'phase'"),
        ({"a": mlp()}, {"family": "best"}, "unknown family 'best'"),
        ({"a": mlp()}, {"family": sp.contexts.Binary(learnable=True)}, "leave learnable out"),
        ({"a": tied()}, {}, r"0.weight and 2.weight are one tensor, .* name '2' in private_layers"),
        ({"a": mlp()}, {"skip": "layers"}, "skip='layers': give several names"),
        ({"a": mlp()}, {"calibration": {}}, "no calibration inputs for 'a'"),
        (
            {"a": mlp()},
            {"calibration": dict.fromkeys("ab", torch.ones(3, 8)), "method": "sum"},
            "calibration: there is no model 'b'; there are 'a'",
        ),
        ({"a": mlp()}, {"calibration": {"a": 3}}, "calibration of 'a' is no tensor"),
        ({"a": mlp()}, {"calibration": {"a": [(torch.ones(12), 0)]}}, "is no tensor: .*no labels"),
        ({"a": mlp()}, {"calibration": {"a": (torch.ones(4, 12), torch.ones(4))}},
         r"fails on the 2 inputs that it was given \(labels are none\): "),
        ({"a": mlp()}, {"calibration": torch.ones(4, 12)},
         "calibration is a Tensor: give a mapping from names of models to their inputs"),
        ({"a": mlp()}, {"calibration": {"a": torch.zeros(0, 12)}}, r"of \[0\] rows"),
        ({"a": mlp()}, {"calibration": {"a": torch.full((4, 12), torch.nan)}}, "not finite"),
        ({"a": mlp()}, {"method": "sum", "finetune": 5}, "finetune=5 is for method 'solve'"),
        ({"a": mlp()}, {"finetune": -1}, "finetune=-1: it is a number of steps"),
        ({"a": mlp()}, {"calibration": {"a": torch.ones(4, 7)}}, "fails on the inputs .* mat1"),
        ({"a": nn.Sequential(nn.LSTM(4, 4))}, {"calibration": {"a": torch.ones(2, 3, 4)}},
         "LSTM '0' is not one linear map, .*: name it in private_layers"),
        ({"a": mlp()}, {"method": "delta", "base": MLP(12, 20, 5)}, "the base has no"),
        ({"a": mlp()}, {"base": True}, "base is a bool: give the network that the models were"),
        ({"a": mlp()}, {"base": mlp().state_dict()}, "base is a OrderedDict: .* load_state_dict"),
        ({"a": mlp()}, {"base": Scaled}, "base is the class Scaled: give the network"),
        ({"a": mlp()}, {"base": sp.superpose(mlp())}, r"superposed: give unsuperpose\(base"),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_says_why(models, options, message):
    with pytest.raises(sp.SuperposeError, match=message):
        sp.pack(models, **options)


def test_inputs_that_are_no_mapping_are_refused_before_a_model_is_added():
    models = nets(mlp, "ab")
    packed = sp.pack({"a": models["a"]}, method="sum")
    for change, name in ((packed.add, "b"), (packed.replace, "a")):
        with pytest.raises(sp.SuperposeError, match="calibration is a Tensor: give a mapping"):
            change(name, models["b"], calibration=torch.ones(4, 12))
    with pytest.raises(sp.SuperposeError, match="model 'b' is the class Scaled"):
        packed.add("b", Scaled)
    assert packed.tasks == ["a"]


def test_tensors_that_belong_to_no_layer():
    models = {"a": Scaled(), "b": Scaled()}
    x = dict.fromkeys("ab", torch.randn(9, 4))
    with pytest.raises(sp.SuperposeError, match="never reach layer 'unused'"):
        sp.pack(models, calibration=x)
    packed = sp.pack(models, calibration=x, private_layers=["unused"])
    assert "scale" in packed.summary().private
    for name, model in models.items():
        assert torch.equal(sp.unpack(packed, name).scale, model.scale)
    models["b"].scale.data = models["a"].scale.data.clone()
    packed = sp.pack(models, calibration=x, private_layers=["unused"])
    assert "scale" in packed.summary().shared
    models["b"].count += 1
    with pytest.raises(sp.SuperposeError, match="count differs between the models, and Scaled can"):
        sp.pack(models, calibration=x)


def test_layers_that_are_shared_are_the_same_in_all_models():
    models = nets(Attending, "ab")
    models["b"].load_state_dict(models["a"].state_dict())
    models["b"].attention.out_proj.weight.data.add_(0.1)
    sides = [torch.randn(4, 2, 24).repeat_interleave(10, 0) for _ in range(2)]
    packed = sp.pack(models, calibration=dict.fromkeys("ab", sides))
    summary = packed.summary()
    assert "attention.out_proj.weight" in summary.superposed
    assert "head.weight" in summary.shared
    torch.testing.assert_close(packed(*sides, task="b"), models["b"](*sides), rtol=0.02, atol=0.02)
    with pytest.raises(sp.SuperposeError, match=r"skip: attention\.\S+ differs"):
        sp.pack(nets(Attending, "ab"), calibration=dict.fromkeys("ab", sides), skip=["attention"])
