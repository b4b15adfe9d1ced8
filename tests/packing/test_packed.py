"""Packed models: stored, forgotten, saved and trained as the models could be."""

import copy
import weakref

import numpy as np
import pytest
import torch
from packing.problems import MLP, cnn, error, every_method, fitted, inputs, nets
from torch import nn

import superpose as sp


@pytest.mark.parametrize("conv", ["kernel", "channel"])
@every_method
def test_one_model_comes_out_as_it_went_in(method, conv):
    models = nets(cnn, "a")
    x = torch.randn(200, 3, 6, 6)
    packed = sp.pack(models, "hadamard", method=method, conv=conv, **fitted(method, {"a": x}))
    plain = sp.unpack(packed, "a")
    assert type(plain) is nn.Sequential
    assert plain.state_dict().keys() == models["a"].state_dict().keys()
    torch.testing.assert_close(plain(x), models["a"](x), rtol=1e-3, atol=1e-3)
    for key, tensor in models["a"].state_dict().items():
        if method != "solve":
            torch.testing.assert_close(plain.state_dict()[key], tensor)


@every_method
def test_a_model_that_is_forgotten_leaves_the_others_bit_for_bit(method):
    models, x = nets(), inputs()
    packed = sp.pack(models, method=method, **fitted(method, x))
    before = packed(x["b"], task="b")
    private = packed.cost().stored
    packed.remove("c")
    assert packed.tasks == ["a", "b"]
    assert torch.equal(packed(x["b"], task="b"), before)
    assert packed.cost().stored < private
    with pytest.raises(sp.SuperposeError, match="unknown task 'c'"):
        packed(x["c"], task="c")
    packed.remove("a")
    with pytest.raises(sp.SuperposeError, match="'b' is the only task"):
        packed.remove("b")
    assert packed.add_task("new") == "new"
    assert packed.superposition.names["new"] == 3  # the contexts of a forgotten task stay spent


@every_method
def test_packed_models_are_saved_and_loaded(method, tmp_path):
    models, x = nets(cnn, "ab"), torch.randn(30, 3, 6, 6)
    given = fitted(method, dict.fromkeys("ab", x))
    packed = sp.pack(models, "hadamard", method=method, **given).eval()
    packed.add_task("spare")
    packed.remove("spare")
    sp.save(packed, tmp_path / "p.safetensors")
    loaded = sp.load(tmp_path / "p.safetensors", cnn()).eval()
    assert isinstance(loaded, sp.Packed)
    assert loaded.method == method
    for field in ("family", "seed", "names", "options", "spent"):
        assert getattr(loaded.superposition, field) == getattr(packed.superposition, field)
    assert loaded.begun == packed.begun == ["a", "b"]
    assert torch.equal(loaded(x[:2], task=["a", "b"]), packed(x[:2], task=["a", "b"]))
    assert type(copy.deepcopy(loaded)) is type(packed)
    if method == "sum":
        loaded.remove("a", models["a"])
        torch.testing.assert_close(loaded(x, task="b"), models["b"](x), rtol=1e-4, atol=1e-4)


class Counted(np.ndarray):
    """Memory of which one can know whether it is still held."""


@every_method
def test_no_two_models_are_in_memory(method):
    known, peak = [], 0

    def opener(number):
        def make():
            nonlocal peak
            torch.manual_seed(number)
            net = MLP()
            held = net.hidden[0].weight.detach().numpy().copy().view(Counted)
            net.hidden[0].weight = nn.Parameter(torch.from_numpy(held))
            known.append(weakref.ref(held))
            del held
            peak = max(peak, sum(one() is not None for one in known))
            return net

        return make

    x = inputs("abcd", 6)
    models = {name: opener(number) for number, name in enumerate("abcd")}
    given = fitted(method, {n: (lambda n=n: x[n]) for n in x})
    packed = sp.pack(models, method=method, finetune=2 if method == "solve" else 0, **given)
    assert peak == 1
    if method == "solve":
        assert error(packed, models["c"](), "c", x["c"]) < 0.5


def test_packed_models_can_be_trained_as_the_models_could():
    models, x = nets(cnn, "ab"), torch.randn(20, 3, 6, 6)
    for net in models.values():
        net[0].requires_grad_(False)
    packed = sp.pack(models, calibration=dict.fromkeys("ab", x), finetune=2)
    trained = {name for name, p in packed.named_parameters() if p.requires_grad}
    assert "3.weight" in trained
    assert not trained & {"0.weight", "3.bias", "6.bias"}
    kinds = {flats.kind for flats in packed.private_state.flats.values()}
    assert kinds == {"trained", "frozen", "statistics"}
    own = [p for flats in packed.private_state.flats.values() for p in flats.parameters()]
    assert sorted(p.requires_grad for p in own) == [False, False, True, True]
    plain = sp.unpack(packed, "a")
    assert not packed.training
    assert torch.equal(plain[1].running_mean, models["a"][1].running_mean)
    assert {n for n, p in plain.named_parameters() if p.requires_grad} == {
        n for n, p in models["a"].named_parameters() if p.requires_grad
    }


def test_the_models_given_are_not_touched():
    models, x = nets(cnn, "ab"), torch.randn(20, 3, 6, 6)
    before = {n: copy.deepcopy(net.state_dict()) for n, net in models.items()}
    models["a"].train()
    sp.pack(models, calibration=dict.fromkeys("ab", x), finetune=3)
    assert models["a"].training
    assert not models["b"].training
    for name, net in models.items():
        assert all(p.requires_grad and p.grad is None for p in net.parameters())
        assert not any(module._forward_pre_hooks for module in net.modules())
        assert all(torch.equal(before[name][k], t) for k, t in net.state_dict().items())


@every_method
def test_models_that_functions_return_are_not_touched(method):
    models, x = nets(cnn, "ab"), torch.randn(20, 3, 6, 6)
    models["a"].train()
    before = {n: copy.deepcopy(net.state_dict()) for n, net in models.items()}
    returned = {name: (lambda net=net: net) for name, net in models.items()}
    options = {"method": method, **fitted(method, dict.fromkeys("ab", x))}
    packed = sp.pack(returned, **options)
    assert models["a"].training
    for name, net in models.items():
        assert all(torch.equal(before[name][k], t) for k, t in net.state_dict().items())
    for own, same in zip(packed.parameters(), sp.pack(models, **options).parameters(), strict=True):
        assert torch.equal(own, same)


def test_models_from_transformers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=30, n_embd=32, n_layer=1, n_head=2, n_positions=8)
    models = {name: transformers.GPT2LMHeadModel(config).eval() for name in "ab"}
    ids = {"input_ids": torch.randint(0, 30, (2, 4))}
    packed = sp.pack(models, calibration=dict.fromkeys("ab", ids))
    assert "transformer.wte.weight" in packed.summary().private
    assert "transformer.h.0.attn.c_attn.weight" in packed.summary().superposed
    with torch.no_grad():
        for name, net in models.items():
            wanted = net(**ids).logits
            assert (packed(**ids, task=name).logits - wanted).norm() < 0.05 * wanted.norm()


def test_a_model_that_was_unpacked_is_as_plain_as_before():
    models = nets(MLP, "ab")
    plain = sp.unpack(sp.pack(models, method="sum"), "a")
    assert vars(plain).keys() == vars(models["a"]).keys()
    assert sp.pack({"again": plain}, method="sum").method == "sum"


def test_pack_is_the_function_whatever_is_imported():
    import superpose.packing.packing
    import superpose.packing.solve

    assert sp.pack is superpose.packing.packing.pack
    assert sp.packing.pack is sp.pack
