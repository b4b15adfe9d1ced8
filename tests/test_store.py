"""Offline storage: what is packed comes out again, as well as least squares can."""

import copy
import weakref

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from checks import rows_one_by_one
from networks import LAYERS, cnn, mlp
from scripts import loaded
from torch import nn

import superpose as sp
from superpose.keys import Key
from superpose.store import packed as packing
from superpose.store import solve as solving
from superpose.store.inputs import patches
from superpose.store.sources import Sources

REAL = ["binary", "rotation", "permutation", "block-rotation", "phase", "hadamard"]
every_method = pytest.mark.parametrize("method", ["sum", "delta", "solve"])


def nets(make=mlp, names="abc"):
    generator = torch.manual_seed(0)
    found = {name: make().eval() for name in names}
    for net in found.values():
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.3 * torch.rand(tensor.shape, generator=generator) - 0.1)
    return found


def wide():
    return sp.lab.MLP(48, 64, 5, bias=True)


def inputs(names="abc", points=10, shape=(48,)):
    """A few points, each of them ten times, so that those held out are no new ones."""
    generator = torch.Generator().manual_seed(1)
    some = {name: torch.randn(points, *shape, generator=generator) for name in names}
    return {name: x.repeat_interleave(10, 0) for name, x in some.items()}


def error(packed, net, name, x):
    with torch.no_grad():
        wanted = net(x)
        return float((packed(x, task=name) - wanted).norm() / wanted.norm())


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


@pytest.mark.parametrize("conv", ["kernel", "channel"])
@every_method
def test_one_model_comes_out_as_it_went_in(method, conv):
    models = nets(cnn, "a")
    x = torch.randn(200, 3, 6, 6)
    packed = sp.pack(models, "hadamard", method=method, conv=conv, calibration={"a": x})
    plain = sp.unpack(packed, "a")
    assert type(plain) is nn.Sequential
    assert plain.state_dict().keys() == models["a"].state_dict().keys()
    torch.testing.assert_close(plain(x), models["a"](x), rtol=1e-3, atol=1e-3)
    for key, tensor in models["a"].state_dict().items():
        if method != "solve":
            torch.testing.assert_close(plain.state_dict()[key], tensor)


@pytest.mark.parametrize("family", REAL)
def test_solve_is_exact_when_the_tasks_leave_room(family):
    models, x = nets(wide), inputs()
    packed = sp.pack(models, family, calibration=x, seed=3)
    summed = sp.pack(models, family, method="sum", seed=3)
    for name, net in models.items():
        assert error(packed, net, name, x[name]) < 1e-3
        assert error(summed, net, name, x[name]) > 0.3
    rows = torch.stack([x["c"][0], x["a"][1]])
    mixed = packed(rows, task=["c", "a"])
    expected = torch.cat([models["c"](rows[:1]), models["a"](rows[1:])])
    torch.testing.assert_close(mixed, expected, rtol=1e-2, atol=1e-2)


def test_solve_without_contexts_cannot_tell_the_models_apart():
    models = nets(lambda: sp.lab.MLP(48, 64, 5))
    shared = inputs("a")["a"]
    x = dict.fromkeys(models, shared)
    packed = sp.pack(models, "identity", calibration=x)
    assert min(error(packed, net, n, x[n]) for n, net in models.items()) > 0.05
    keyed = sp.pack(models, "binary", calibration=x)
    assert max(error(keyed, net, n, x[n]) for n, net in models.items()) < 1e-3


def test_the_solution_is_least_squares_with_a_bias_for_each_task():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 40, 6, generator=generator, dtype=torch.float64) + 1
    y = torch.randn(2, 40, 3, generator=generator, dtype=torch.float64) + torch.tensor([1.0, 5, -2])
    problem = solving.Problem(slice(None), centre=True)
    for task in (0, 1):
        whole = solving.Moments.of(x[task : task + 1], y[task : task + 1])
        pairs = zip(x[task, None].split(7, 1), y[task, None].split(7, 1), strict=True)
        parts = [solving.Moments.of(*pair) for pair in pairs]
        summed = sum(parts[1:], parts[0])
        torch.testing.assert_close(summed.gram, whole.gram)
        problem.add(task, summed, solving.Moments())
    w, biases = problem.solution()
    scale = y.square().sum((1, 2)).rsqrt()
    ones = torch.block_diag(torch.ones(40, 1), torch.ones(40, 1)).double()
    design = torch.cat([x.flatten(0, 1), ones], 1) * scale.repeat_interleave(40)[:, None]
    target = y.flatten(0, 1) * scale.repeat_interleave(40)[:, None]
    solution = np.linalg.lstsq(design.numpy(), target.numpy(), rcond=None)[0]
    np.testing.assert_allclose(w[0].numpy(), solution[:6].T, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(torch.cat([biases[0], biases[1]]).numpy(), solution[6:], atol=1e-6)


def test_the_ridge_is_chosen_by_rows_that_were_held_out():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 60, 50, generator=generator, dtype=torch.float64)
    w = torch.randn(1, 2, 50, generator=generator, dtype=torch.float64)
    noise = torch.randn(1, 60, 2, generator=generator, dtype=torch.float64)
    few, rest = x[:, :55], x[:, 55:]
    for size, low, high in ((0.0, 0, 1e-9), (30.0, 1e-3, 1)):
        y = x @ w.mT + size * noise
        kept, held = solving.Moments.of(few, y[:, :55]), solving.Moments.of(rest, y[:, 55:])
        chosen = solving.best_ridge(kept, held)
        assert low < chosen < high
        errors = {r: (rest @ solving.fit(kept, r).mT - y[:, 55:]).norm() for r in solving.RIDGES}
        assert errors[chosen] <= min(errors.values()) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
        (nn.Conv2d(3, 5, (3, 2), dilation=2, padding=(1, 2)), (2, 3, 6, 5)),
        (nn.Conv2d(2, 4, 3, padding="same", padding_mode="reflect"), (2, 2, 5, 5)),
        (nn.Conv2d(2, 4, 3, padding="same"), (2, 2, 5, 5)),
        (nn.Conv3d(2, 4, 2, padding_mode="circular", padding=1), (1, 2, 3, 4, 3)),
    ],
)
def test_patches_times_the_kernel_are_the_convolution(layer, shape):
    x = torch.randn(shape)
    wanted = F.relu(layer(x) - 1e9) + layer(x) - layer.bias.view(1, -1, *[1] * (x.ndim - 2))
    found = patches(layer, x, seed=0)  # (groups, rows · places, features)
    kernel = layer.weight.flatten(1).unflatten(0, (layer.groups, -1))
    y = found @ kernel.mT
    expected = wanted.flatten(2).unflatten(1, (layer.groups, -1)).permute(1, 0, 3, 2).flatten(1, 2)
    torch.testing.assert_close(y, expected)


def test_few_places_of_a_large_image_are_drawn():
    layer = nn.Conv2d(3, 5, 3)
    assert patches(layer, torch.randn(2, 3, 40, 40), seed=0).shape == (1, 2 * 64, 27)


@pytest.mark.parametrize("conv", ["kernel", "channel"])
@pytest.mark.parametrize("family", ["binary", "hadamard"])
def test_convolutions_with_groups_and_norms(family, conv):
    def make():
        return nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 4),
        )  # fmt: skip

    models = nets(make, "ab")
    x = inputs("ab", 4, (8, 4, 4))
    x = {name: value[:, :1].expand(-1, 8, -1, -1).contiguous() for name, value in x.items()}
    packed = sp.pack(models, family, calibration=x, conv=conv, finetune=0)
    summed = sp.pack(models, family, method="sum", conv=conv)
    for name, net in models.items():
        assert error(packed, net, name, x[name]) < 0.5 * error(summed, net, name, x[name])
        assert torch.equal(packed[1].private["running_mean"].of("ab".index(name)),
                           net[1].running_mean)  # fmt: skip
    assert torch.equal(packed.eval()(x["a"], task="a"), packed(x["a"], task=0))


class Attending(nn.Module):
    """Cross-attention, so that queries and keys differ."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 2, batch_first=True, **options)
        self.head = nn.Linear(24, 3)

    def forward(self, x, y):
        attended = self.attention(x, y, value=y, need_weights=False)[0]
        return self.head(attended)


@pytest.mark.parametrize("options", [{}, {"kdim": 16, "vdim": 16}, {"bias": False}])
def test_attention_projections(options):
    models = nets(lambda: Attending(**options), "ab")
    generator = torch.Generator().manual_seed(0)
    size = options.get("kdim", 24)
    x = {}
    for name in models:
        sides = [torch.randn(4, 2, width, generator=generator) for width in (24, size)]
        x[name] = [side.repeat_interleave(10, 0) for side in sides]
    packed = sp.pack(models, calibration=x)
    for name, net in models.items():
        wanted = net(*x[name])
        torch.testing.assert_close(packed(*x[name], task=name), wanted, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(sp.unpack(packed, name)(*x[name]), packed(*x[name], task=name))


def test_an_encoder_layer_of_torch():
    def make():
        return nn.Sequential(nn.TransformerEncoderLayer(24, 2, 48, batch_first=True), nn.Flatten(),
                             nn.Linear(48, 3))  # fmt: skip

    models, x = nets(make, "ab"), inputs("ab", 5, (2, 24))
    packed = sp.pack(models, calibration=x)
    for name, net in models.items():
        assert error(packed, net, name, x[name]) < 2e-2


class Reused(nn.Module):
    """One layer that is called twice: its second input depends on its own weights."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(self.layer(x).relu())


def test_a_layer_that_is_called_twice():
    models, x = nets(Reused, "ab"), inputs("ab", 10, (64,))
    packed = sp.pack(models, calibration=x)
    for name, net in models.items():
        assert error(packed, net, name, x[name]) < 1e-2


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


@every_method
def test_a_model_that_is_forgotten_leaves_the_others_bit_for_bit(method):
    models, x = nets(wide), inputs()
    packed = sp.pack(models, method=method, calibration=x)
    before = packed(x["b"], task="b")
    packed.remove("a")
    assert packed.tasks == ["b", "c"]
    assert torch.equal(packed(x["b"], task="b"), before)
    with pytest.raises(sp.SuperposeError, match="unknown task 'a'"):
        packed(x["a"], task="a")
    private = packed.cost()
    packed.remove("c")
    assert packed.cost().stored == private.stored - private.private_per_task
    with pytest.raises(sp.SuperposeError, match="'b' is the only task"):
        packed.remove("b")
    assert packed.add_task("new") == "new"
    assert packed.superposition.names["new"] == 3  # the contexts of a forgotten task stay spent


def test_adding_to_a_solved_model_reads_the_others_out_of_it():
    models, x = nets(wide), inputs()
    packed = sp.pack({n: models[n] for n in "ab"}, calibration={n: x[n] for n in "ab"})
    packed.add("c", models["c"], x)
    for name, net in models.items():
        assert error(packed, net, name, x[name]) < 1e-3
    packed.replace("a", models["b"], calibration=x)
    assert error(packed, models["b"], "a", x["a"]) < 1e-3
    assert error(packed, models["c"], "c", x["c"]) < 1e-3
    with pytest.raises(sp.SuperposeError, match="stores no term"):
        packed.remove("a", models["a"])
    before = copy.deepcopy(packed.state_dict())
    with pytest.raises(sp.SuperposeError, match="no calibration inputs for 'd'"):
        packed.add("d", models["a"], x)
    for change in (packed.add, packed.replace):
        with pytest.raises(sp.SuperposeError, match="give calibration=…, inputs of each task"):
            change("d" if change == packed.add else "a", models["a"])
    assert packed.tasks == ["a", "b", "c"]
    assert all(torch.equal(before[key], tensor) for key, tensor in packed.state_dict().items())


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
    with pytest.raises(sp.SuperposeError, match=r"uses 'inner\.weight' without calling"):
        packed(x, task=list("abcab"))


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


@every_method
def test_packed_models_are_saved_and_loaded(method, tmp_path):
    models, x = nets(cnn, "ab"), torch.randn(30, 3, 6, 6)
    packed = sp.pack(models, "hadamard", method=method, calibration=dict.fromkeys("ab", x)).eval()
    packed.add_task("spare")
    packed.remove("spare")
    sp.save(packed, tmp_path / "p.safetensors")
    loaded = sp.load(tmp_path / "p.safetensors", cnn()).eval()
    assert isinstance(loaded, sp.Packed)
    assert loaded.method == method
    assert loaded.superposition == packed.superposition
    assert torch.equal(loaded(x[:2], task=["a", "b"]), packed(x[:2], task=["a", "b"]))
    assert type(copy.deepcopy(loaded)) is type(packed)
    if method == "sum":
        loaded.remove("a", models["a"])
        torch.testing.assert_close(loaded(x, task="b"), models["b"](x), rtol=1e-4, atol=1e-4)


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
    packed = sp.pack(models, method=method, calibration=dict.fromkeys("ab", ids))
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


def test_models_are_opened_one_at_a_time():
    alive, peak = weakref.WeakSet(), 0
    x = inputs("abcdef", 6)

    def opener(number):
        def make():
            nonlocal peak
            torch.manual_seed(number)
            net = wide()
            alive.add(net)
            peak = max(peak, len(alive))
            return net

        return make

    models = {name: opener(number) for number, name in enumerate("abcdef")}
    packed = sp.pack(models, calibration={n: (lambda n=n: x[n]) for n in x}, finetune=2)
    assert peak == 1
    assert error(packed, models["e"](), "e", x["e"]) < 0.5


def test_packed_models_can_be_trained_as_the_models_could():
    models, x = nets(cnn, "ab"), torch.randn(20, 3, 6, 6)
    for net in models.values():
        net[0].requires_grad_(False)
    packed = sp.pack(models, calibration=dict.fromkeys("ab", x), finetune=2)
    trained = {name for name, p in packed.named_parameters() if p.requires_grad}
    assert "3.weight" in trained
    assert not trained & {"0.weight", "3.bias", "6.bias"}
    own = {name for name, tensor in packed.private_tensors("b").items() if tensor.requires_grad}
    assert own == {"1.weight", "1.bias", "3.bias", "4.weight", "4.bias", "6.bias"}
    plain = sp.unpack(packed, "a")
    assert {n for n, p in plain.named_parameters() if p.requires_grad} == {
        n for n, p in models["a"].named_parameters() if p.requires_grad
    }


def test_one_backward_pass_through_tasks_that_were_never_used_before():
    sp.contexts.cache.clear()
    model = sp.superpose(cnn().eval(), "hadamard", tasks=9)
    x = torch.randn(2, 3, 6, 6)
    sum(model(x, task=task).sum() for task in range(9)).backward()
    found = model[0].weight.grad.clone()
    model.zero_grad()
    for task in range(9):
        model(x, task=task).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, found)


def test_finetuning_brings_the_outputs_closer():
    models, x = nets(wide, "abcdef"), inputs("abcdef", 100)
    before = sp.pack(models, calibration=x)
    after = sp.pack(models, calibration=x, finetune=60)
    again = sp.pack(models, calibration=x, finetune=60)
    for name, net in models.items():
        assert error(after, net, name, x[name]) < 0.95 * error(before, net, name, x[name])
    assert all(
        torch.equal(a, b) for a, b in zip(after.parameters(), again.parameters(), strict=True)
    )
    assert all(p.grad is None for p in after.parameters())


def test_without_calibration_noise_is_used_and_it_is_worse():
    torch.manual_seed(0)
    models = nets(wide)
    mix = torch.randn(6, 48)
    x = {name: torch.randn(300, 6) @ mix for name in models}
    with pytest.warns(UserWarning, match="fitted on Gaussian noise, which is worse"):
        noisy = sp.pack(models)
    good, summed = sp.pack(models, calibration=x), sp.pack(models, method="sum")
    for name, net in models.items():
        errors = [error(p, net, name, x[name]) for p in (good, noisy, summed)]
        assert errors[0] < errors[1] < errors[2]
    with (
        pytest.raises(sp.SuperposeError, match="does not tell the shape"),
        pytest.warns(UserWarning, match="Gaussian"),
    ):
        sp.pack(nets(cnn, "ab"))
    with pytest.warns(UserWarning, match="Gaussian"):
        sp.pack(nets(cnn, "ab"), input_shape=(3, 6, 6))


def test_tasks_that_have_no_inputs_have_noise_of_their_own():
    models = nets(wide, "ab")
    with pytest.warns(UserWarning, match="Gaussian"):
        drawn = packing._noise(Sources(models), seed=3, input_shape=None)
    a, b, again = drawn["a"](), drawn["b"](), drawn["a"]()
    assert torch.equal(a, again)
    assert (a - b).abs().max() > 1


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


@pytest.mark.parametrize("method", ["sum", "delta", "solve"])
def test_models_that_functions_return_are_not_touched(method):
    models, x = nets(cnn, "ab"), torch.randn(20, 3, 6, 6)
    models["a"].train()
    before = {n: copy.deepcopy(net.state_dict()) for n, net in models.items()}
    returned = {name: (lambda net=net: net) for name, net in models.items()}
    options = {"method": method, "calibration": dict.fromkeys("ab", x)}
    packed = sp.pack(returned, **options)
    assert models["a"].training
    for name, net in models.items():
        assert all(torch.equal(before[name][k], t) for k, t in net.state_dict().items())
    for own, same in zip(packed.parameters(), sp.pack(models, **options).parameters(), strict=True):
        assert torch.equal(own, same)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_that_gives_only_zeros_is_packed(bias):
    torch.manual_seed(0)
    models = {n: nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 4, bias)) for n in "ab"}
    x = inputs("ab")
    for tensor in models["b"][2].parameters():
        nn.init.zeros_(tensor)
    packed = sp.pack(models, calibration=x)
    assert error(packed, models["a"], "a", x["a"]) < 0.01
    assert packed(x["b"], task="b").abs().max() < 0.01 * models["a"](x["a"]).abs().max()


def tied():
    net = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12))
    net[2].weight = net[0].weight
    return net


def test_one_of_two_tied_layers_can_be_private():
    models, x = {"a": tied(), "b": tied()}, inputs("ab", 4, (12,))
    packed = sp.pack(models, calibration=x, private_layers=["2"])
    for name, net in models.items():
        torch.testing.assert_close(packed(x[name], task=name), net(x[name]), rtol=1e-3, atol=1e-3)


def spoiled(value):
    net = mlp()
    net.layers[1].weight.data[0, 0] = value
    return net


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        ({}, {}, "there is no model to pack"),
        ([mlp()], {}, "there is no model to pack: give a mapping"),
        ({"a": 3}, {}, "model 'a' is a int: give a plain module"),
        ({"a": lambda: 3}, {}, "model 'a' is a int: give a plain module"),
        ({"a": sp.superpose(mlp())}, {}, "give a plain module"),
        ({"": mlp()}, {}, "cannot name a task"),
        ({"a": mlp(), "b": mlp(bias=False)}, {}, r"'b' has no layers.1.bias: .* one architecture"),
        ({"a": mlp(bias=False), "b": mlp()}, {}, r"'b' has another tensor, layers.1.bias"),
        ({"a": mlp(), "b": sp.lab.MLP(12, 20, 5, bias=True)}, {}, r"\(20, 12\) .* \(16, 12\)"),
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
        ({"a": mlp()}, {"calibration": {"a": 3}}, "calibration of 'a' is no tensor"),
        ({"a": mlp()}, {"calibration": {"a": torch.zeros(0, 12)}}, r"of \[0\] rows"),
        ({"a": mlp()}, {"calibration": {"a": torch.full((4, 12), torch.nan)}}, "not finite"),
        ({"a": mlp()}, {"method": "sum", "finetune": 5}, "finetune=5 is for method 'solve'"),
        ({"a": mlp()}, {"finetune": -1}, "finetune=-1: it is a number of steps"),
        ({"a": mlp()}, {"calibration": {"a": torch.ones(4, 7)}}, "fails on the inputs .* mat1"),
        ({"a": nn.Sequential(nn.LSTM(4, 4))}, {"calibration": {"a": torch.ones(2, 3, 4)}},
         "LSTM '0' is not one linear map, .*: name it in private_layers"),
        ({"a": mlp()}, {"method": "delta", "base": sp.lab.MLP(12, 20, 5)}, "the base has no"),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_says_why(models, options, message):
    with pytest.raises(sp.SuperposeError, match=message):
        sp.pack(models, **options)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("count", torch.zeros(1))
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x * self.scale)


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


def test_nets_of_low_rank_are_compressed_without_loss():
    low_rank = loaded("lowrank").low_rank
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 36, 20))
    for layer in (net[0], net[3]):
        few = torch.randn(len(layer.weight), 2) @ torch.randn(2, layer.weight[0].numel())
        layer.weight.data = 0.1 * few.view(layer.weight.shape)
    x = torch.randn(30, 3, 8, 8)
    small, numbers = low_rank(net, x, 6)
    torch.testing.assert_close(small(x), net(x), rtol=1e-4, atol=1e-4)
    ranks = (24 * 27 // (6 * 51), 20 * 864 // (6 * 884))
    assert numbers == ranks[0] * 51 + 24 + ranks[1] * 884 + 20
    assert (low_rank(net, x, 20)[0](x) - net(x)).abs().max() > 0.1
    beside, numbers = low_rank(net, x, 6, base=net)
    assert numbers == 0
    torch.testing.assert_close(beside(x), net(x))
