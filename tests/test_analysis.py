"""Predictions, against measurement."""

import math
from dataclasses import replace

import pytest
import torch
from networks import cnn, inputs, nets, wide
from torch import nn

import superpose as sp
from superpose.analysis.solved import Spectrum, ridges


def correlated(rows, size, generator, decay=0.9):
    """Inputs that fill some directions more than others."""
    turned = torch.linalg.qr(torch.randn(size, size, generator=generator)).Q
    scale = decay ** torch.arange(size)
    return torch.randn(rows, size, generator=generator) * scale @ turned


@pytest.mark.parametrize("tasks", [2, 4, 9])
def test_the_others_act_as_a_ridge(tasks):
    """The mean of (A + λ)⁻¹ over random rotations, seen by one task, is (Σ + ω)⁻¹."""
    generator = torch.Generator().manual_seed(tasks)
    size, trials = 80, 12
    values = 0.9 ** torch.arange(size).double()
    omega = float(ridges(values.unsqueeze(0), copies=tasks)[0])
    found = torch.zeros(size, dtype=torch.float64)
    for _ in range(trials):
        total = torch.diag(values)
        for _ in range(tasks - 1):
            q = torch.linalg.qr(torch.randn(size, size, generator=generator).double()).Q
            total = total + q @ torch.diag(values) @ q.T
        found += torch.linalg.inv(total).diagonal() / trials
    predicted = 1 / (values + omega)
    assert ((found - predicted).abs() / predicted).mean() < 0.05


def test_room_is_as_good_as_zeros():
    values = torch.rand(1, 12, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([values, torch.zeros(1, 20)], 1)
    torch.testing.assert_close(ridges(values, 5, room=32), ridges(padded, 5), rtol=1e-4, atol=0.0)
    assert float(ridges(values, 5, room=61)) < 1e-6 < float(ridges(values, 5, room=40))


@pytest.mark.parametrize("family", ["rotation", "hadamard", "binary", "phase"])
@pytest.mark.parametrize("bias", [False, True])
def test_solve_is_predicted_to_ten_percent(family, bias):
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    models = {k: nn.Sequential(nn.Linear(96, 32, bias), nn.ReLU(), nn.Linear(32, 8, bias))
              for k in "abcd"}  # fmt: skip
    x = {name: correlated(3000, 96, generator, 0.95) for name in models}
    packed = sp.pack(models, family, calibration=x)
    found = sp.crosstalk(packed, models, x)
    for layer in found.layers:
        assert 0.005 < layer.measured < 0.9
        assert layer.predicted == pytest.approx(layer.measured, rel=0.1)
    last = found.layers[-1].measured
    assert sum(found.outputs.values()) / 4 == pytest.approx(last, rel=0.02)
    assert all(0.3 < agreement < 1 for agreement in found.agreement.values())


@pytest.mark.parametrize("family", ["binary", "hadamard", "rotation", "phase", "permutation"])
@pytest.mark.parametrize("method", ["sum", "delta"])
def test_sums_are_predicted_to_ten_percent(family, method):
    torch.manual_seed(0)
    models = {name: sp.models.MLP(256, 256, 32) for name in "abcde"}
    x = {name: torch.randn(128, 256) for name in models}
    packed = sp.pack(models, family, method=method)
    for layer in sp.crosstalk(packed, models, x).layers:
        assert layer.predicted == pytest.approx(layer.measured, rel=0.1)
        assert layer.measured > 0.5


@pytest.mark.parametrize(
    ("conv", "method"), [("kernel", "sum"), ("kernel", "solve"), ("channel", "solve")]
)
def test_convolutions_are_measured_and_predicted(conv, method):
    models = {
        name: nn.Sequential(nn.Conv2d(8, 16, 3, groups=2), nn.ReLU(), nn.Flatten(),
                            nn.Linear(16 * 16, 4))
        for name in "abc"
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    x = {name: torch.randn(600, 8, 6, 6, generator=generator) for name in models}
    packed = sp.pack(models, "hadamard", method=method, conv=conv, calibration=x)
    found = sp.crosstalk(packed, models, x)
    first = found.layers[0]
    assert first.predicted == pytest.approx(first.measured, rel=0.25 if conv == "kernel" else 0.5)


def test_one_model_has_no_crosstalk_and_a_trained_one_no_prediction():
    models, x = nets(wide, "a"), inputs("a")
    found = sp.crosstalk(sp.pack(models, calibration=x), models, x)
    assert found.outputs["a"] < 1e-6
    assert found.agreement["a"] == 1
    assert all(layer.measured < 1e-5 for layer in found.layers)
    trained = sp.superpose(models["a"], tasks=["a", "b"])
    snapshots = {task: sp.unsuperpose(trained, task) for task in trained.tasks}
    same = sp.crosstalk(trained, snapshots, {"a": x["a"], "b": x["a"]})
    assert all(layer.predicted is None and layer.measured < 1e-9 for layer in same.layers)
    assert "–" in str(same)
    assert same.as_dict()["layers"][0]["layer"] == "layers.1.weight"
    with pytest.raises(sp.SuperposeError, match="task 'b' needs its model and its inputs"):
        sp.crosstalk(trained, models, x)


def test_a_plan_is_what_packing_then_does():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    models = {name: nn.Sequential(nn.Linear(96, 24)) for name in "abcd"}
    x = {name: correlated(3000, 96, generator, 0.95) for name in models}
    planned = sp.plan(models["a"], 4, "hadamard", inputs=x["a"], noise=0.02)
    packed = sp.pack(models, "hadamard", calibration=x)
    measured = sp.crosstalk(packed, models, x)
    assert planned.noise == pytest.approx(sum(measured.outputs.values()) / 4, rel=0.1)
    assert planned.layers[0].rank == pytest.approx(math.log(0.1) / math.log(0.95), rel=0.15)
    assert planned.bottleneck.layer == "0.weight"
    width = planned.layers[0].width
    assert 96 < width < 384
    wider = {name: nn.Sequential(nn.Linear(width, 24)) for name in models}
    padded = {name: nn.functional.pad(rows, (0, width - 96)) for name, rows in x.items()}
    for name, net in wider.items():
        net[0].weight.data[:, :96] = models[name][0].weight
    found = sp.crosstalk(sp.pack(wider, "hadamard", calibration=padded), wider, padded)
    assert sum(found.outputs.values()) / 4 == pytest.approx(0.02, rel=0.25)


def test_a_plan_counts_bytes_and_names_the_bottleneck():
    net = sp.models.MLP(64, 32, 4, bias=True)
    planned = sp.plan(net, 10, rank=20)
    assert [layer.inputs for layer in planned.layers] == [64, 32, 32]
    assert planned.layers[0].noise < planned.layers[1].noise
    assert planned.bottleneck.layer == "layers.3.weight"
    cost = sp.superpose(net, tasks=10).cost()
    assert (planned.stored_bytes, planned.separate_bytes) == (
        cost.stored_bytes,
        cost.separate_bytes,
    )
    text = str(planned)
    assert "the bottleneck is layers.3.weight" in text
    assert f"{cost.separate_bytes:,} as separate files" in text
    assert planned.as_dict()["layers"][0]["signal_to_noise_db"] > 0
    full = sp.plan(net, 10)
    assert full.layers[0].noise == pytest.approx(0.9, rel=1e-3)  # (K − 1) / K
    assert replace(full.layers[0], noise=0.01).signal_to_noise == pytest.approx(20)
    assert sp.plan(net, 1).noise == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("family", ["binary", "hadamard"])
def test_a_plan_for_the_sum_is_proposition_2(family):
    net = nn.Sequential(nn.Linear(256, 64, bias=False))
    x = torch.randn(500, 256)
    planned = sp.plan(net, 5, family, method="sum", inputs=x)
    assert planned.layers[0].noise == pytest.approx(4, rel=0.1)  # isotropic: K − 1
    assert planned.layers[0].width == math.ceil(256 * planned.layers[0].noise / 0.05)
    assert planned.noise == planned.layers[0].noise


def test_a_plan_for_convolutions_and_attention():
    planned = sp.plan(cnn().eval(), 3, inputs=torch.randn(64, 3, 6, 6))
    assert [layer.layer for layer in planned.layers] == ["0.weight", "3.weight", "6.weight"]
    assert [layer.inputs for layer in planned.layers] == [27, 36, 96]
    encoder = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)).eval()
    names = [layer.layer for layer in sp.plan(encoder, 3, inputs=torch.randn(40, 3, 16)).layers]
    assert names[:2] == ["0.self_attn.in_proj_weight", "0.self_attn.out_proj.weight"]


def test_the_spectrum_tells_the_rank():
    x = torch.randn(200, 3).double() @ torch.randn(3, 10).double()
    y = x @ torch.randn(10, 4).double()
    spectrum = Spectrum.of(x.T @ x, y.T @ x, y.square().sum(), y.square().sum())
    assert spectrum.rank <= 3
    assert spectrum.noise(0.0) == pytest.approx(0, abs=1e-6)
    assert 0 < spectrum.noise(0.1) < spectrum.noise(1.0) < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 0}, "tasks=0: plan for at least one"),
        ({"tasks": 2, "method": "delta"}, "a plan is for 'solve' or 'sum'"),
        ({"tasks": 2, "noise": 0}, "noise=0: the share of noise"),
        ({"tasks": 2, "rank": 0}, "rank=0: inputs fill at least one"),
        ({"tasks": 2, "inputs": torch.ones(4, 7)}, "fails on the inputs that it was given: mat1"),
        ({"tasks": 2, "family": "best"}, "unknown family"),
        ({"tasks": 2, "family": "identity"}, "'identity' cannot tell models apart"),
        ({"tasks": 2, "family": "complex"}, "'complex' cannot be packed: plan for 'phase'"),
    ],
)
def test_plans_that_make_no_sense(options, message):
    with pytest.raises(sp.SuperposeError, match=message):
        sp.plan(wide(), **options)


def two_layers():
    return nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 4, bias=False))


@pytest.mark.parametrize("method", ["sum", "solve"])
def test_a_layer_that_gives_only_zeros_has_no_share_of_noise(method):
    models, x = nets(two_layers, "abc"), inputs("abc")
    for name in "bc":
        nn.init.zeros_(models[name][2].weight)
    packed = sp.pack(models, method=method, calibration=x)
    last = sp.crosstalk(packed, models, x).layers[-1]
    assert last.measured == pytest.approx(0, abs=1e-3)
    assert last.predicted == pytest.approx(0, abs=1e-3)
    planned = sp.plan(models["b"], 3, method=method, inputs=x["b"])
    assert planned.layers[-1].noise == 0
    assert planned.layers[0].noise >= 0


def test_only_contexts_that_turn_something_are_predicted():
    models, x = nets(wide, "abc"), inputs("abc", points=60)
    found = sp.crosstalk(sp.pack(models, "identity", calibration=x), models, x)
    assert all(layer.predicted is None for layer in found.layers)
    assert found.layers[0].measured > 0.1


def test_composed_contexts_are_measured_and_modes_stay_as_they_were():
    models, x = nets(two_layers, "ab"), inputs("ab", points=60)
    composed = sp.contexts.Hadamard() * sp.contexts.Binary()
    packed = sp.pack(models, composed, method="sum").train()
    packed[0].eval()
    found = sp.crosstalk(packed, models, x)
    assert all(layer.predicted is None for layer in found.layers)
    assert found.layers[0].measured > 0.1
    assert (packed.training, packed[0].training, packed[2].training) == (True, False, True)


class Crossing(nn.Module):
    """Attention whose three inputs have very different sizes."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 2, bias=False, batch_first=True)

    def forward(self, x, y):
        return self.attention(x, 30 * y, y)[0]


def test_sums_in_cross_attention_are_predicted_part_by_part():
    torch.manual_seed(0)
    models = {name: Crossing().requires_grad_(False) for name in "abcd"}
    models["a"].attention.in_proj_weight[:64] *= 20
    sides = {name: [torch.randn(20, 3, 64), torch.randn(20, 3, 64)] for name in models}
    packed = sp.pack(models, "hadamard", method="sum")

    def noise(name):
        own = models[name].attention.in_proj_weight
        read = sp.unpack(packed, name).attention.in_proj_weight
        x, y = (side.flatten(0, 1) for side in sides[name])
        inputs = x, 30 * y, y
        pairs = list(zip(inputs, own.split(64), (read - own).split(64), strict=True))
        energy = sum((z @ w.T).square().sum() for z, w, _ in pairs)
        return float(sum((z @ change.T).square().sum() for z, _, change in pairs) / energy)

    first = sp.crosstalk(packed, models, sides).layers[0]
    assert first.measured == pytest.approx(sum(map(noise, models)) / 4, rel=0.2)
    assert first.predicted == pytest.approx(first.measured, rel=0.2)
    alike = sp.plan(models["b"], 4, "hadamard", method="sum", inputs=sides["b"])
    assert alike.layers[0].noise == pytest.approx(3, rel=0.2)


def test_a_plan_leaves_out_what_packing_would():
    net = nn.ModuleDict({"rnn": nn.LSTM(8, 8), "head": nn.Linear(8, 4)})
    with pytest.raises(sp.SuperposeError, match="LSTM 'rnn' is not one linear map"):
        sp.plan(net, 3)
    for option in ("private_layers", "skip"):
        assert [one.layer for one in sp.plan(net, 3, **{option: ["rnn"]}).layers] == ["head.weight"]
