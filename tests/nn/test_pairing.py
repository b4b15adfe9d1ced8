"""Random pairing of layers: what task k has in layer i is kept in the weight of layer π(i)."""

import copy

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.keys import Key, permutation
from superpose.model import layers

NAMES = ["0", "2", "4", "6"]  # of the four layers that have one shape


def deep():
    sizes = [(16, 16)] * 4 + [(16, 3)]
    return nn.Sequential(*(m for a, b in sizes for m in (nn.Linear(a, b), nn.Tanh())))


def convolving(groups=1):
    convs = (nn.Conv2d(8, 8, 3, padding=1, groups=groups) for _ in range(4))
    ups = (nn.ConvTranspose2d(8, 8, 3, padding=1, groups=groups) for _ in range(3))
    body = [m for conv in (*convs, *ups) for m in (conv, nn.BatchNorm2d(8), nn.Tanh())]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(8 * 9, 3))


def family_of(make, names="abc"):
    """A base and fine-tunes of it, which differ in every tensor."""
    generator = torch.Generator().manual_seed(0)
    base = make().eval()
    models = {name: copy.deepcopy(base) for name in names}
    for net in models.values():
        for parameter in net.parameters():
            parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return base, models


def packing(base, models, family="hadamard", **options):
    return sp.pack(models, family, method="delta", base=base, random_pairing=True, **options)


def places(task, seed=0):
    """The layer that each of the four is kept in."""
    order = permutation(Key(seed, "random pairing (16, 16)", task), 4).tolist()
    return dict(zip(NAMES, (NAMES[place] for place in order), strict=True))


def test_the_places_are_a_file_format():
    orders = [[NAMES.index(kept) for kept in places(task).values()] for task in range(4)]
    assert orders == [[1, 0, 3, 2], [2, 1, 3, 0], [1, 2, 0, 3], [0, 1, 2, 3]]
    model = packing(*family_of(deep, "abcd"))
    for task in range(4):
        slots = {one.path: one.slot(task).path for one in layers(model)}
        expected = places(task) | {"8": "8"}  # the only one of its shape
        assert slots == expected


def test_places_that_come_out_differently_are_noticed(tmp_path, monkeypatch):
    base, models = family_of(deep)
    sp.save(packing(base, models), tmp_path / "many.safetensors")
    sp.load(tmp_path / "many.safetensors", deep())
    monkeypatch.setattr("superpose.nn.pairing._order", lambda key, count: range(count))
    with pytest.raises(sp.SuperposeError, match="contexts derived here differ"):
        sp.load(tmp_path / "many.safetensors", deep())


def test_a_weight_is_the_sum_of_what_the_tasks_keep_there():
    base, models = family_of(deep)
    packed = packing(base, models, "rotation", seed=5)
    moved = 0
    for slot in NAMES:
        stored = torch.zeros(16, 16, dtype=torch.float64)
        for task, net in enumerate(models.values()):
            (own,) = [name for name, kept in places(task, 5).items() if kept == slot]
            moved += own != slot
            change = (net[int(own)].weight - base[int(own)].weight).detach().double()
            context = sp.contexts.Rotation().context(Key(5, f"{own}.change.weight", task), 16)
            stored += context.unbind_weight(change)
        found = packed[int(slot)].weight
        torch.testing.assert_close(found.double(), stored, rtol=1e-5, atol=1e-6)
    assert moved > 4


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("conv", ["kernel", "channel"])
def test_one_model_comes_out_as_it_went_in(conv, groups):
    base, models = family_of(lambda: convolving(groups), "a")
    packed = packing(base, models, conv=conv)
    assert any(one.slot(0) is not one for one in layers(packed))
    x = torch.randn(2, 8, 3, 3)
    torch.testing.assert_close(packed(x, task="a"), models["a"](x))
    for key, tensor in sp.unpack(packed, "a").state_dict().items():
        torch.testing.assert_close(tensor, models["a"].state_dict()[key])


def test_a_change_of_one_layer_disturbs_another_layer_of_the_other_task():
    base, _ = family_of(deep)
    models = {name: copy.deepcopy(base) for name in "ab"}
    models["b"][2].weight.data.add_(0.1)
    for name in NAMES:  # no layer may be the same in both, or it would be shared
        models["b"][int(name)].bias.data.add_(0.1)
    packed = packing(base, models)
    plain = sp.pack(models, "hadamard", method="delta", base=base)

    def disturbed(model):
        read = sp.unpack(model, "a")
        pairs = {name: (read[int(name)].weight, base[int(name)].weight) for name in NAMES}
        return {name for name, (found, own) in pairs.items() if (found - own).norm() > 1e-5}

    slots = [places(task) for task in (0, 1)]
    (meeting,) = [name for name in NAMES if slots[0][name] == slots[1]["2"]]
    assert meeting != "2"
    assert disturbed(packed) == {meeting}
    assert disturbed(plain) == {"2"}
    torch.testing.assert_close(sp.unpack(packed, "b")[2].weight, models["b"][2].weight)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("conv", ["kernel", "channel"])
@pytest.mark.parametrize("family", ["binary", "hadamard", "rotation"])
def test_rows_of_many_tasks_equal_the_tasks_one_by_one(family, conv, groups):
    packed = packing(*family_of(lambda: convolving(groups)), family, conv=conv)
    x, tasks = torch.randn(5, 8, 3, 3), ["c", "a", "b", "a", "c"]
    mixed = packed(x, task=tasks)
    alone = torch.cat([packed(row[None], task=task) for row, task in zip(x, tasks, strict=True)])
    torch.testing.assert_close(mixed, alone)
    for task in "abc":
        torch.testing.assert_close(sp.unpack(packed, task)(x), packed(x, task=task))
    assert (packed(x, task="a") - packed(x, task="b")).norm() > 0.01


def test_gradients_reach_the_weights_that_are_used():
    packed = packing(*family_of(deep))
    x, tasks = torch.randn(3, 16), ["b", "a", "b"]
    packed(x, task=tasks).sum().backward()
    mixed = {name: p.grad.clone() for name, p in packed.named_parameters() if p.grad is not None}
    packed.zero_grad()
    for row, task in zip(x, tasks, strict=True):
        packed(row[None], task=task).sum().backward()
    assert all(f"{name}.weight" in mixed for name in NAMES)
    for name, parameter in packed.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(mixed[name], parameter.grad)


def test_add_remove_and_replace_are_exact():
    base, models = family_of(deep, "abcd")
    x = torch.randn(5, 16)

    def of(names):
        return packing(base, {name: models[name] for name in names})

    def same(one, other, names):
        for name in names:
            a, b = one(x, task=name), other(x, task=name)
            assert (a - b).norm() <= 1e-6 * b.norm()

    packed = of("ab")
    packed.add("c", models["c"])
    same(packed, of("abc"), "abc")
    packed.replace("c", models["d"], old=models["c"])
    assert (packed(x, task="c") - of("abc")(x, task="c")).norm() > 0.01
    packed.replace("c", models["c"], old=models["d"])
    same(packed, of("abc"), "abc")
    packed.remove("c", models["c"])
    same(packed, of("ab"), "ab")
    packed.remove("a", models["a"])
    torch.testing.assert_close(packed(x, task="b"), models["b"](x))


def test_saved_copied_and_moved(tmp_path):
    packed = packing(*family_of(convolving), "binary")
    x, tasks = torch.randn(3, 8, 3, 3), ["a", "c", "b"]
    wanted = packed(x, task=tasks)
    sp.save(packed, tmp_path / "p.safetensors")
    loaded = sp.load(tmp_path / "p.safetensors", convolving()).eval()
    assert loaded.superposition == packed.superposition
    assert torch.equal(loaded(x, task=tasks), wanted)
    other = copy.deepcopy(packed)
    for parameter in packed.parameters():
        parameter.data.zero_()
    assert torch.equal(other(x, task=tasks), wanted)
    moved = other.double()(x.double(), task=tasks)
    torch.testing.assert_close(moved.float(), wanted, rtol=1e-4, atol=1e-5)
    unpaired = sp.pack(family_of(convolving)[1], "binary", method="delta")
    assert loaded.cost() == unpaired.cost()
    assert loaded.state_dict().keys() == unpaired.state_dict().keys()


class InOrder(nn.Module):
    """The same layers, registered in some order."""

    def __init__(self, order):
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(8, 8))

    def forward(self, x):
        return self.c(self.b(self.a(x)))


def test_the_order_in_which_layers_were_registered_does_not_matter():
    packed, other = (
        packing(*family_of(lambda order=order: InOrder(order))) for order in ("abc", "cab")
    )
    other.load_state_dict(packed.state_dict())
    x = torch.randn(2, 8)
    assert torch.equal(other(x, task=["a", "b"]), packed(x, task=["a", "b"]))


def test_the_crosstalk_that_is_predicted_is_that_of_the_layers_that_meet():
    torch.manual_seed(0)
    base = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(3)))
    models = {name: copy.deepcopy(base) for name in "abcdef"}
    for net in models.values():
        for size, layer in zip((0.002, 0.01, 0.05), net, strict=True):
            layer.weight.data.add_(size * torch.randn(64, 64))
    packed = packing(base, models)
    x = {name: torch.randn(64, 64) for name in models}
    found = sp.crosstalk(packed, models, x)
    for layer in found.layers:
        assert layer.predicted == pytest.approx(layer.measured, rel=0.1)
    paired, unpaired = (
        found,
        sp.crosstalk(sp.pack(models, "hadamard", method="delta", base=base), models, x),
    )
    assert paired.layers[0].measured > 5 * unpaired.layers[0].measured


@pytest.mark.parametrize("method", ["sum", "solve"])
def test_pairing_is_for_delta_alone(method):
    with pytest.raises(sp.SuperposeError, match=f"random_pairing is for .*'delta'.* {method!r}"):
        sp.pack(family_of(deep)[1], method=method, random_pairing=True)
