"""Methods `sum` and `delta`: a term for each model, added and subtracted exactly."""

import copy

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from networks import LAYERS
from packing.problems import (
    MLP,
    cnn,
    error,
    fine_tunes,
    inputs,
    nets,
    rows_one_by_one,
)
from torch import nn

import superpose as sp
from superpose.keys import Key

every_sum = pytest.mark.parametrize("method", ["sum", "delta"])


@pytest.mark.parametrize("rank", [0, 2])
def test_sum_is_equation_1_of_what_low_rank_parts_leave(rank):
    models = {name: nn.Linear(6, 5, bias=False) for name in "abc"}
    packed = sp.pack(models, "hadamard", method="sum", rank=rank, seed=7)
    stored, dense, parts = np.zeros((5, 6)), [], []
    for number, (name, net) in enumerate(models.items()):
        weight = net.weight.detach().double().numpy()
        left, values, right = np.linalg.svd(weight)
        parts.append((left[:, :rank] * values[:rank]) @ right[:rank])
        if rank:
            own = packed.private_tensors(name)
            made = own["weight_up"] @ own["weight_down"]
            np.testing.assert_allclose(made.detach().numpy(), parts[-1], rtol=1e-4, atol=1e-5)
        dense.append(reference.hadamard(Key(7, "weight", number), 6))
        stored += (weight - parts[-1]) @ np.linalg.inv(dense[-1])
    np.testing.assert_allclose(packed.weight.detach().numpy(), stored, rtol=1e-4, atol=1e-5)
    read = sp.unpack(packed, "b")
    assert type(read) is nn.Linear
    wanted = stored @ dense[1] + parts[1]
    np.testing.assert_allclose(read.weight.detach().numpy(), wanted, rtol=1e-4, atol=1e-5)


@every_sum
@pytest.mark.parametrize("rank", [0, 1])
def test_adding_and_subtracting_a_model_is_exact(method, rank):
    models, x = nets(cnn, "abcd"), torch.randn(5, 3, 6, 6)
    base = {} if method == "sum" else {"base": models["d"]}

    def packing(names):
        given = {name: models[name] for name in names}
        return sp.pack(given, "phase", method=method, rank=rank, **base)

    def same(one, other, names):
        for name in names:
            a, b = one(x, task=name), other(x, task=name)
            assert (a - b).norm() <= 2e-6 * b.norm()

    packed, three, two = packing("ab"), packing("abc"), packing("ab")
    before = {name: net.state_dict() for name, net in copy.deepcopy(models).items()}
    packed.add("c", lambda: models["c"])
    same(packed, three, "abc")
    assert (packed(x, task="a") - two(x, task="a")).norm() > 0.01
    packed.remove("c", models["c"])
    assert packed.tasks == ["a", "b"]
    same(packed, two, "ab")
    for name, net in models.items():
        assert all(torch.equal(before[name][key], t) for key, t in net.state_dict().items())


@every_sum
def test_another_model_than_the_stored_one_is_not_subtracted(method):
    models = nets(cnn, "abc")
    packed = sp.pack({n: models[n] for n in "ab"}, "phase", method=method)
    before = copy.deepcopy(packed.state_dict())
    message = r"model 'a': \S+ is not the one that is stored.* remove 'a' by its name alone"
    with pytest.raises(sp.SuperposeError, match=message):
        packed.remove("a", models["b"])
    assert packed.tasks == ["a", "b"]
    assert all(torch.equal(t, before[key]) for key, t in packed.state_dict().items())
    with torch.no_grad():
        packed.private_tensors("a")["3.bias"].add_(1e-5)
    with pytest.raises(sp.SuperposeError, match=r"'a': 3\.bias is .* was trained further since"):
        packed.remove("a", models["a"])
    packed.remove("b", models["b"])
    before = packed[3].stored("weight").clone()
    with pytest.raises(sp.SuperposeError, match="'a' is the only task"):
        packed.remove("a", sp.unpack(packed, "a"))
    assert torch.equal(packed[3].stored("weight"), before)


@every_sum
def test_a_low_rank_part_that_was_trained_is_not_subtracted(method, tmp_path):
    base = MLP(24, 32, 20, bias=False)  # the parts alone tell models apart
    models = fine_tunes(base, "abc", rank=3)
    packed = sp.pack(models, method=method, base=base, rank=2)
    with pytest.raises(sp.SuperposeError, match=r"model 'b': hidden.* another model, or the pack"):
        packed.remove("b", models["c"])
    for dtype in (torch.bfloat16, torch.float16, None):
        sp.save(packed, tmp_path / "many.safetensors", dtype=dtype)
        sp.load(tmp_path / "many.safetensors", base).remove("b", models["b"])
    with torch.no_grad():
        packed.private_tensors("b")["head.weight_up"].mul_(1.05)
    with pytest.raises(sp.SuperposeError, match=r"model 'b': head\.weight is not the one"):
        packed.remove("b", models["b"])
    packed.remove("b")


@pytest.mark.parametrize("here", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32, torch.int8])
def test_a_model_is_known_again_after_it_was_stored_in_fewer_bits(stored, here, tmp_path):
    models = nets(cnn, "ab")
    sp.save(sp.pack(models, "phase", method="sum"), tmp_path / "p.safetensors", dtype=stored)
    loaded = sp.load(tmp_path / "p.safetensors", cnn().to(here))
    near = copy.deepcopy(models["a"])
    near[0].bias.data *= 1.02
    with pytest.raises(sp.SuperposeError, match=r"'a': 0\.bias is not the one that is stored"):
        loaded.remove("a", near.to(here))
    loaded.remove("a", models["a"].to(here))
    assert loaded.tasks == ["b"]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_keeps_a_base_and_fine_tunes_of_few_directions(name):
    torch.manual_seed(0)
    base, shape = LAYERS[name]()
    base, x = base.eval(), torch.randn(5, *shape)
    models = fine_tunes(base, "ab", rank=1)
    alone = sp.pack({"a": models["a"]}, "hadamard", method="delta", base=base)
    torch.testing.assert_close(alone(x, task="a"), models["a"](x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sp.unsuperpose(alone)(x), base(x))
    alone.add_task("new")
    torch.testing.assert_close(alone(x, task="new"), base(x))  # it has not begun
    both = sp.pack(models, "hadamard", method="delta", base=base)
    made = {0: both}
    if name != "conv2d depthwise":
        made[1] = sp.pack(models, "hadamard", method="delta", base=base, rank=1)
    else:
        with pytest.raises(sp.SuperposeError, match=r"rank=1: .* in no superposed layer"):
            sp.pack(models, "hadamard", method="delta", base=base, rank=1)
    for packed in made.values():
        for task in models:
            y = packed(x, task=task)
            torch.testing.assert_close(y, sp.unpack(packed, task)(x), rtol=1e-4, atol=1e-5)
        tasks = list("abbab")
        expected = rows_one_by_one(packed, tasks, x)
        torch.testing.assert_close(packed(x, task=tasks), expected, rtol=1e-4, atol=1e-5)
    for task, model in models.items():
        noise = [(packed(x, task=task) - model(x)).norm() for packed in made.values()]
        assert noise[0] > 1e-4  # the other one's
        assert noise[-1] < 0.9 * noise[0] or len(made) == 1  # layers too small for a part have none


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
    base, x = MLP().eval(), torch.randn(20, 48)
    models = {name: copy.deepcopy(base) for name in "abc"}
    for net in models.values():
        for parameter in net.parameters():
            parameter.data.add_(0.02 * torch.randn_like(parameter))
    packed = sp.pack(models, method="delta", base=base)
    averaged = sp.pack(models, method="delta")
    summed = sp.pack(models, method="sum")
    for name, net in models.items():
        assert error(packed, net, name, x) < 0.5 * error(summed, net, name, x)
        assert error(averaged, net, name, x) < 0.5 * error(summed, net, name, x)
        read = sp.unpack(packed, name)
        assert read.state_dict().keys() == net.state_dict().keys()
        torch.testing.assert_close(read(x), packed(x, task=name))
        key = Key(0, "hidden.0.change.weight", "abc".index(name))
        change = (
            sp.contexts.Binary().context(key, 48).bind_weight(packed.hidden[0].stored("weight"))
        )
        torch.testing.assert_close(read.hidden[0].weight, base.hidden[0].weight + change)
    for key, tensor in sp.unsuperpose(averaged).state_dict().items():
        torch.testing.assert_close(tensor, sum(n.state_dict()[key] for n in models.values()) / 3)
    solved = sp.pack(models, base=base, calibration=dict.fromkeys("abc", x[:10]))
    assert error(solved, models["a"], "a", x) < error(packed, models["a"], "a", x)
    assert packed.cost().stored > 1.9 * summed.cost().shared  # two sets of weights


@every_sum
def test_inputs_that_nothing_is_computed_from_get_a_warning(method):
    models, x = nets(MLP, "ab"), inputs("ab")
    message = f"calibration has no effect with method '{method}'.* recognise=True"
    with pytest.warns(UserWarning, match=message) as warned:
        sp.pack(models, method=method, calibration=x)
    assert [one.filename for one in warned] == [__file__]
    known = sp.pack(models, method=method, calibration=x, recognise=True)
    assert known.recognisable == ["a", "b"]


def test_a_sum_of_differences_from_a_base_is_delta():
    models = nets()
    base = models.pop("c")
    summed, delta = (sp.pack(models, method=name, base=base) for name in ("sum", "delta"))
    for key, tensor in summed.state_dict().items():
        assert torch.equal(tensor, delta.state_dict()[key])
    assert summed.superposition.options.base


def test_the_base_may_have_another_output_layer():
    torch.manual_seed(0)
    base, models = MLP(48, 64, 9), nets(MLP, "ab")
    with pytest.raises(sp.SuperposeError, match=r"the base has no head\.weight like the models'"):
        sp.pack(models, method="delta", base=base)
    packed = sp.pack(models, method="delta", base=base, private_layers=["head"])
    for name, net in models.items():
        assert torch.equal(sp.unpack(packed, name).head.weight, net.head.weight)


def test_shared_tensors_are_those_of_the_models_and_not_of_the_base():
    models = nets(MLP, "ab")
    models["b"].head.load_state_dict(models["a"].head.state_dict())
    base = MLP()
    packed = sp.pack(models, method="delta", base=base)
    assert "head.weight" in packed.summary().shared
    assert torch.equal(packed.head.weight, models["a"].head.weight)
    assert not torch.equal(base.head.weight, models["a"].head.weight)
