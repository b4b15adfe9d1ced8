"""What is private, what is shared, and what cannot be packed."""

import copy

import pytest
import torch
from packing.problems import MLP, Attending, error, every_method, fitted, inputs, nets, small
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
        assert torch.equal(packed.private_tensors(name)["words.weight"], net.words.weight)
    assert packed.cost().private_per_task == 2 * 20 * 16 + 16
    if method != "solve":
        other = copy.deepcopy(models["a"])
        other.fixed.bias.data.add_(1)
        with pytest.raises(sp.SuperposeError, match=r"fixed\.\w+ is shared by all stored models"):
            packed.add("c", other)


def tied():
    net = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12))
    net[2].weight = net[0].weight
    return net


def test_one_of_two_tied_layers_can_be_private(tmp_path):
    models, x = {"a": tied(), "b": tied()}, inputs("ab", 4, (12,))
    packed = sp.pack(models, calibration=x, private_layers=["2"])
    for name, net in models.items():
        torch.testing.assert_close(packed(x[name], task=name), net(x[name]), rtol=1e-3, atol=1e-3)
    sp.save(packed, tmp_path / "p.safetensors")
    loaded = sp.load(tmp_path / "p.safetensors", tied())
    assert torch.equal(loaded(x["a"], task="b"), packed(x["a"], task="b"))


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
    net = small()
    net.hidden[0].weight.data[0, 0] = value
    return net


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        ({}, {}, "there is no model to pack"),
        ([small()], {}, "the models to pack are a list: give a mapping from names to models"),
        (small(), {}, "the models to pack are a MLP: give a mapping from names to models"),
        ({"a": 3}, {}, "model 'a' is a int: give a plain module"),
        ({"a": lambda: 3}, {}, "model 'a' is a int: give a plain module"),
        ({"a": Scaled}, {}, "model 'a' is the class Scaled, .* give a module, with its weights"),
        ({"a": sp.superpose(small())}, {}, "give a plain module"),
        ({"": small()}, {}, "cannot name a task"),
        ({"a": small(), "b": small(bias=False)}, {}, r"'b' has no hidden.0.bias: .* one arch"),
        ({"a": small(bias=False), "b": small()}, {}, r"'b' has another tensor, hidden.0.bias"),
        ({"a": small(), "b": MLP(12, 20)}, {}, r"\(20, 12\) .* \(16, 12\)"),
        ({"a": small(), "b": small().double()}, {}, "float64, and .* float32 in the others"),
        ({"a": spoiled(float("nan"))}, {}, r"'a': hidden.0.weight holds numbers that are not fin"),
        ({"a": spoiled(float("inf"))}, {}, "not finite"),
        ({"a": small()}, {"method": "average"}, "method='average': use one of solve, sum, delta"),
        ({"a": small()}, {"family": "complex"}, "'complex' makes networks complex-valued.*'phase'"),
        ({"a": small()}, {"family": "best"}, "unknown family 'best'"),
        ({"a": small()}, {"family": sp.contexts.Binary(learnable=True)}, "leave learnable out"),
        ({"a": tied()}, {}, r"0.weight and 2.weight are one tensor, .* name '2' in private_layers"),
        ({"a": small()}, {"skip": "layers"}, "skip='layers': give several names"),
        ({"a": small()}, {"calibration": {}}, "no calibration inputs for 'a'"),
        (
            {"a": small()},
            {"calibration": dict.fromkeys("ab", torch.ones(3, 8)), "method": "sum"},
            "calibration: there is no model 'b'; there are 'a'",
        ),
        ({"a": small()}, {"calibration": {"a": 3}}, "calibration of 'a' is no tensor"),
        ({"a": small()}, {"calibration": {"a": [(torch.ones(12), 0)]}}, "no tensor: .*no labels"),
        ({"a": small()}, {"calibration": {"a": (torch.ones(4, 12), torch.ones(4))}},
         r"fails on the 2 inputs that it was given \(labels are none\): "),
        ({"a": small()}, {"calibration": torch.ones(4, 12)},
         "calibration is a Tensor: give a mapping from names of models to their inputs"),
        ({"a": small()}, {"calibration": {"a": torch.zeros(0, 12)}}, r"of \[0\] rows"),
        ({"a": small()}, {"calibration": {"a": torch.full((4, 12), torch.nan)}}, "not finite"),
        ({"a": small()}, {"method": "sum", "finetune": 5}, "finetune=5 is for method 'solve'"),
        ({"a": small()}, {"finetune": -1}, "finetune=-1: it is a number of steps"),
        ({"a": small()}, {"calibration": {"a": torch.ones(4, 7)}}, "fails on the inputs .* mat1"),
        ({"a": nn.Sequential(nn.LSTM(4, 4))}, {"calibration": {"a": torch.ones(2, 3, 4)}},
         "LSTM '0' is not one linear map, .*: name it in private_layers"),
        ({"a": small()}, {"method": "delta", "base": MLP(12, 20)}, "the base has no"),
        ({"a": small()}, {"base": True}, "base is a bool: give the network that the models were"),
        ({"a": small()}, {"base": small().state_dict()}, "base is a OrderedDict: .* load_state"),
        ({"a": small()}, {"base": Scaled}, "base is the class Scaled: give the network"),
        ({"a": small()}, {"base": sp.superpose(small())}, r"superposed: give unsuperpose\(base"),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_says_why(models, options, message):
    with pytest.raises(sp.SuperposeError, match=message):
        sp.pack(models, **options)


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
    packed = sp.pack(models, calibration=x, private_layers=["unused"])
    assert "count" in packed.summary().private
    assert [sp.unpack(packed, name).count.item() for name in "ab"] == [0, 1]


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


def test_what_differs_and_cannot_be_private_is_named():
    def normed():
        return nn.Sequential(
            nn.Linear(12, 8), torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 5))
        )

    message = r"1\.parametrizations\.weight\.original0.*: differs .* is made from other tensors"
    with pytest.raises(sp.SuperposeError, match=message):
        sp.pack(nets(normed, "ab"), method="sum")


def test_tied_tables_of_one_model_are_kept():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.middle = nn.Embedding(7, 6), nn.Linear(6, 6)
            self.head = nn.Linear(6, 7)
            self.head.weight = self.words.weight

        def forward(self, ids):
            return self.head(self.middle(self.words(ids)))

    net, ids = Tied().eval(), torch.randint(7, (40, 3))
    for models in ({"a": net}, {"a": net, "b": copy.deepcopy(net)}):
        for method in ("sum", "delta", "solve"):
            given = {"calibration": dict.fromkeys(models, ids)} if method == "solve" else {}
            packed = sp.pack(models, "hadamard", method=method, **given)
            assert torch.equal(packed.words.weight, net.words.weight)
            if len(models) == 1:
                assert error(packed, net, "a", ids) < 1e-3
