"""Methods `sum` and `delta`: a term for each model, added and subtracted exactly."""

import copy

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from checks import rows_one_by_one
from networks import LAYERS, cnn, inputs, nets, wide
from packing.problems import error
from torch import nn

import superpose as sp
from superpose.keys import Key


def test_sum_is_equation_1_and_its_read_out_equation_2():
    models = {name: nn.Linear(6, 4, bias=False) for name in "abc"}
    packed = sp.pack(models, "hadamard", method="sum", seed=7)
    dense = [reference.hadamard(Key(7, "weight", k), 6) for k in range(3)]
    weights = [net.weight.detach().double().numpy() for net in models.values()]
    stored = sum(w @ np.linalg.inv(c) for w, c in zip(weights, dense, strict=True))
    np.testing.assert_allclose(packed.weight.detach().numpy(), stored, rtol=1e-5, atol=1e-6)
    read = sp.unpack(packed, "b")
    assert type(read) is nn.Linear
    np.testing.assert_allclose(
        read.weight.detach().numpy(), stored @ dense[1], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("method", ["sum", "delta"])
def test_add_remove_and_replace_are_exact(method):
    models, x = nets(cnn, "abcd"), torch.randn(5, 3, 6, 6)
    base = {} if method == "sum" else {"base": models["d"]}

    def packing(names):
        return sp.pack({n: models[n] for n in names}, "phase", method=method, **base).eval()

    def same(one, other, names):
        for name in names:
            a, b = one(x, task=name), other(x, task=name)
            assert (a - b).norm() <= 1e-6 * b.norm()

    packed, all_three, two = packing("ab"), packing("abc"), packing("ab")
    packed.add("c", models["c"])
    same(packed, all_three, "abc")
    packed.remove("c", models["c"])
    assert packed.tasks == ["a", "b"]
    same(packed, two, "ab")
    packed.replace("a", models["c"], old=models["a"])
    other = packing("ab")
    assert (packed(x, task="a") - other(x, task="a")).norm() > 0.01
    packed.rename_task("a", "c")
    fresh = sp.pack({"c": models["c"], "b": models["b"]}, "phase", method=method, **base).eval()
    same(packed, fresh, "cb")
    with pytest.raises(sp.SuperposeError, match="needs old="):
        packed.replace("b", models["a"])


@pytest.mark.parametrize("method", ["sum", "delta"])
def test_a_model_that_is_not_the_one_stored_is_not_subtracted(method):
    models = nets(cnn, "abc")
    packed = sp.pack({n: models[n] for n in "ab"}, "phase", method=method)
    before = copy.deepcopy(packed.state_dict())
    told = r"model 'a': \S+ is not the one that is stored.* remove 'a' by its name alone"
    with pytest.raises(sp.SuperposeError, match=told):
        packed.remove("a", models["b"])
    with pytest.raises(sp.SuperposeError, match=told):
        packed.replace("a", models["c"], old=models["b"])
    assert packed.tasks == ["a", "b"]
    for key, tensor in packed.state_dict().items():
        assert torch.equal(tensor, before[key])
    with torch.no_grad():
        packed[3].private["bias"].of(0).add_(1e-5)
    with pytest.raises(sp.SuperposeError, match=r"'a': 3\.bias is .* was trained further since"):
        packed.remove("a", models["a"])
    packed.remove("b", models["b"])
    packed.replace("a", models["a"], old=sp.unpack(packed, "a"))
    before = packed[3].weight.detach().clone()
    with pytest.raises(sp.SuperposeError, match="'a' is the only task"):
        packed.remove("a", models["a"])
    assert torch.equal(packed[3].weight, before)


@pytest.mark.parametrize("here", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32, torch.int8])
def test_a_model_is_known_again_after_it_was_stored_in_fewer_bits(stored, here, tmp_path):
    models = nets(cnn, "ab")
    packed = sp.pack(models, "phase", method="sum")
    sp.save(packed, tmp_path / "p.safetensors", dtype=stored)
    loaded = sp.load(tmp_path / "p.safetensors", cnn().to(here))
    near = copy.deepcopy(models["a"])
    near[0].bias.data *= 1.02
    with pytest.raises(sp.SuperposeError, match=r"'a': 0\.bias is not the one that is stored"):
        loaded.remove("a", near.to(here))
    loaded.remove("a", models["a"].to(here))
    assert loaded.tasks == ["b"]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_keeps_a_base(name):
    torch.manual_seed(0)
    base, shape = LAYERS[name]()
    base, x = base.eval(), torch.randn(5, *shape)
    models = {task: copy.deepcopy(base) for task in "ab"}
    for model in models.values():
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    alone = sp.pack({"a": models["a"]}, "hadamard", method="delta", base=base)
    bases = [tensor for tensor in alone.summary().shared if ".bases." in f".{tensor}"]
    assert len(bases) == len(alone.summary().superposed)
    torch.testing.assert_close(alone(x, task="a"), models["a"](x), rtol=1e-4, atol=1e-5)
    both = sp.pack(models, "hadamard", method="delta", base=base)
    for task, model in models.items():
        y = both(x, task=task)
        torch.testing.assert_close(y, sp.unpack(both, task)(x), rtol=1e-4, atol=1e-5)
        assert (y - model(x)).abs().max() > 1e-4  # what the other one does to it
    tasks = list("abbab")
    mixed = both(x, task=tasks)
    torch.testing.assert_close(mixed, rows_one_by_one(both, tasks, x), rtol=1e-4, atol=1e-5)
    as_it_stands = sp.unsuperpose(alone).state_dict()
    for weight in alone.summary().superposed:
        change, common = alone.state_dict()[weight], base.state_dict()[weight]
        torch.testing.assert_close(as_it_stands[weight], common + change)


def test_a_network_may_read_its_weights_beside_a_base():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(12, 8), nn.Linear(8, 3)

        def forward(self, x):
            x = x.to(self.outer.weight.dtype)
            y = F.linear(x, self.inner.weight, self.inner.bias).view(-1, self.outer.in_features)
            return self.outer(y.relu())

    torch.manual_seed(0)
    models, x = {name: Reads() for name in "abc"}, torch.randn(5, 12)
    packed = copy.deepcopy(sp.pack(models, method="delta"))
    outs = {name: sp.unpack(packed, name)(x) for name in models}
    assert (outs["a"] - outs["b"]).abs().max() > 1e-2
    for name, out in outs.items():
        torch.testing.assert_close(packed(x, task=name), out)
    mixed = packed(x, task=list("abcab"))
    torch.testing.assert_close(mixed, torch.stack([outs[n][i] for i, n in enumerate("abcab")]))


def test_delta_keeps_the_base_and_is_better_the_closer_the_models_are():
    torch.manual_seed(0)
    base, x = wide().eval(), torch.randn(20, 48)
    models = {}
    for name in "abc":
        models[name] = copy.deepcopy(base)
        for parameter in models[name].parameters():
            parameter.data.add_(0.02 * torch.randn_like(parameter))
    packed = sp.pack(models, method="delta", base=base)
    mean = sp.pack(models, method="delta")
    summed = sp.pack(models, method="sum")
    for name, net in models.items():
        assert error(packed, net, name, x) < 0.5 * error(summed, net, name, x)
        assert error(mean, net, name, x) < 0.5 * error(summed, net, name, x)
        read = sp.unpack(packed, name)
        assert read.state_dict().keys() == net.state_dict().keys()
        torch.testing.assert_close(read(x), packed(x, task=name))
        term = packed.layers[1].weight
        context = sp.contexts.Binary().context(
            Key(0, "layers.1.change.weight", "abc".index(name)), 48
        )
        expected = base.layers[1].weight + context.bind_weight(term)
        torch.testing.assert_close(read.layers[1].weight, expected)
    solved = sp.pack(models, base=base, calibration=dict.fromkeys("abc", x[:10]))
    assert error(solved, models["a"], "a", x) < error(packed, models["a"], "a", x)
    assert packed.cost().stored > 1.9 * summed.cost().shared  # two sets of weights


@pytest.mark.parametrize("method", ["sum", "delta"])
def test_inputs_that_nothing_is_computed_from_get_a_warning(method):
    models, x = nets(wide), inputs()
    told = f"calibration has no effect with method '{method}'.* recognise=True"
    with pytest.warns(UserWarning, match=told) as warned:
        packed = sp.pack({"a": models["a"]}, method=method, calibration={"a": x["a"]})
    assert [one.filename for one in warned] == [__file__]
    with pytest.warns(UserWarning, match=told):
        packed.add("b", models["b"], {"b": x["b"]})
    with pytest.warns(UserWarning, match=told):
        packed.replace("b", models["c"], models["b"], {"b": x["b"]})
    known = sp.pack({"a": models["a"]}, method=method, calibration={"a": x["a"]}, recognise=True)
    known.add("b", models["b"], {"b": x["b"]})
    assert known.recognisable == ["a", "b"]


def test_a_sum_of_differences_from_a_base_is_delta():
    models = nets(wide)
    base = models.pop("c")
    for key, tensor in sp.pack(models, method="sum", base=base).state_dict().items():
        assert torch.equal(tensor, sp.pack(models, method="delta", base=base).state_dict()[key])
    assert sp.pack(models, method="sum", base=base).superposition.conversion.base
