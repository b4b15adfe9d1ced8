"""Method `solve`: what is packed comes out again, as well as least squares can."""

import pytest
import torch
from packing.problems import MLP, Attending, cnn, error, inputs, nets
from torch import nn

import superpose as sp
from superpose.packing import solve
from superpose.packing.calibration import Rows, noise
from superpose.packing.sources import Sources
from superpose.packing.weights import linear_maps

REAL = ["binary", "rotation", "permutation", "block-rotation", "phase", "hadamard"]


@pytest.mark.parametrize("family", REAL)
def test_solve_is_exact_when_the_tasks_leave_room(family):
    models, x = nets(), inputs()
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
    models = nets(lambda: MLP(bias=False))
    shared = inputs("a")["a"]
    x = dict.fromkeys(models, shared)
    packed = sp.pack(models, "identity", calibration=x)
    assert min(error(packed, net, n, x[n]) for n, net in models.items()) > 0.05
    keyed = sp.pack(models, "binary", calibration=x)
    assert max(error(keyed, net, n, x[n]) for n, net in models.items()) < 1e-3


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
        assert torch.equal(packed.private_tensors(name)["1.running_mean"], net[1].running_mean)
    assert torch.equal(packed.eval()(x["a"], task="a"), packed(x["a"], task=0))


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


@pytest.mark.parametrize("has_base", [False, True])
def test_a_layer_is_the_least_squares_of_inputs_in_the_packed_network(has_base):
    """Its outputs are those of the model alone, without what the base gives on these inputs."""
    torch.manual_seed(0)
    base, *others = (
        nn.Sequential(nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 6)) for _ in range(4)
    )
    models = dict(zip("abc", others, strict=True))
    x = {name: torch.randn(3000, 32) for name in models}
    given = {"base": base} if has_base else {}
    packed = sp.pack(models, "hadamard", calibration=x, **given)
    designs, targets = [], []
    for number, (name, net) in enumerate(models.items()):
        with torch.no_grad():
            met = sp.unpack(packed, name)[:2](x[name])
            assert (met - net[:2](x[name])).norm() > 0.2 * met.norm()
            y = net(x[name]).double() - has_base * (met @ base[2].weight.mT)
        bound = packed[2].bound["weight"].context.derive(number).bind(met.double())
        scale = y.norm()
        designs.append((bound - bound.mean(0)) / scale)
        targets.append((y - y.mean(0)) / scale)
    wanted = torch.linalg.lstsq(torch.cat(designs), torch.cat(targets)).solution.mT
    far = (packed[2].stored("weight") - wanted).norm() / wanted.norm()
    assert far < 0.03  # for the ridge


def test_models_are_neither_added_to_solved_weights_nor_subtracted():
    models, x = nets(MLP, "ab"), inputs("ab")
    packed = sp.pack(models, calibration=x)
    before = packed.state_dict()
    for change, name in ((packed.add, "c"), (packed.remove, "a")):
        with pytest.raises(
            sp.SuperposeError, match=f"{name}'.*'solve' are no sum.* pack all models"
        ):
            change(name, models["a"])
    assert packed.tasks == ["a", "b"]
    assert all(torch.equal(before[key], tensor) for key, tensor in packed.state_dict().items())


def test_finetuning_brings_the_outputs_closer():
    models, x = nets(MLP, "abcdef"), inputs("abcdef", 100)
    before = sp.pack(models, calibration=x)
    after = sp.pack(models, calibration=x, finetune=60)
    again = sp.pack(models, calibration=x, finetune=60)
    for name, net in models.items():
        assert error(after, net, name, x[name]) < 0.95 * error(before, net, name, x[name])
    assert all(
        torch.equal(a, b) for a, b in zip(after.parameters(), again.parameters(), strict=True)
    )
    assert all(p.grad is None for p in after.parameters())


def test_finetuning_counts_tasks_alike_whatever_the_size_of_their_outputs():
    models, x = nets(MLP, "abcdef"), inputs("abcdef", 100)
    for tensor in models["f"].head.parameters():
        tensor.data *= 0.01
    before, after = (sp.pack(models, calibration=x, finetune=steps) for steps in (0, 60))
    small = [error(packed, models["f"], "f", x["f"]) for packed in (before, after)]
    assert small[1] < 0.95 * small[0]


def test_without_calibration_noise_is_used_and_it_is_worse():
    torch.manual_seed(0)
    models = nets()
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
    models = nets(MLP, "ab")
    with pytest.warns(UserWarning, match="Gaussian"):
        drawn = noise(Sources(models), seed=3, input_shape=None)
    a, b, again = drawn["a"](), drawn["b"](), drawn["a"]()
    assert torch.equal(a, again)
    assert (a - b).abs().max() > 1


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


def test_one_row_in_ten_is_held_out():
    net = nn.Sequential(nn.Linear(6, 2)).eval()
    (weight,) = linear_maps(sp.superpose(net, tasks=1))
    rows = Rows.of("a", torch.randn(45, 6))
    with torch.no_grad():
        (seen,) = solve.observe(weight, 1, 0, net, rows, {}, batch_size=7)
    assert (seen.kept.rows, seen.held.rows, seen.both.rows) == (41, 4, 45)
    bound = weight.bind(rows.positional[0][9::10].double()[None], 0)
    torch.testing.assert_close(seen.held.gram, bound.mT @ bound)


def test_rows_that_were_held_out_keep_it_from_fitting_noise(monkeypatch):
    """With as many rows as inputs the others' crosstalk can be fitted, and then nothing else."""
    torch.manual_seed(0)
    models = {name: nn.Sequential(nn.Linear(48, 5)) for name in "abcd"}
    x = {name: torch.randn(12, 48) for name in models}
    new = {name: torch.randn(200, 48) for name in models}

    def mean_error():
        packed = sp.pack(models, "hadamard", calibration=x)
        return sum(error(packed, net, name, new[name]) for name, net in models.items()) / 4

    held_out = mean_error()
    monkeypatch.setattr(solve, "HELD_OUT", 10**9)
    assert held_out < 0.8 * mean_error()
