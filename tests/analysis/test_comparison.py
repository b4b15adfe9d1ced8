"""Crosstalk: predictions, against measurement."""

import pytest
import torch
from packing.problems import MLP, correlated, error, fine_tunes, fitted, inputs, nets
from torch import nn

import superpose as sp


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
    models = {name: MLP(256, 256, 256, bias=False) for name in "abcde"}
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
    packed = sp.pack(models, "hadamard", method=method, conv=conv, **fitted(method, x))
    found = sp.crosstalk(packed, models, x)
    first = found.layers[0]
    assert first.predicted == pytest.approx(first.measured, rel=0.25 if conv == "kernel" else 0.5)


def test_positions_of_a_kernel_whose_channels_are_bound_add_up():
    """Permutations keep the mean of positive numbers, so all positions err in one direction."""
    torch.manual_seed(0)
    models = {name: nn.Sequential(nn.Conv2d(16, 8, 3)) for name in "abc"}
    for net in models.values():
        net[0].weight.data.abs_()
    x = {name: torch.rand(40, 16, 6, 6) for name in models}
    packed = sp.pack(models, "permutation", method="sum", conv="channel")
    layer = sp.crosstalk(packed, models, x).layers[0]
    assert layer.predicted == pytest.approx(layer.measured, rel=0.1)


@pytest.mark.parametrize("method", ["sum", "delta", "solve"])
def test_noise_beside_a_base_is_a_share_of_the_whole_output(method):
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(96, 64))
    base[0].weight.data *= 30  # of the size of the differences
    models = fine_tunes(base, "abcd", rank=96)
    x = {name: torch.randn(800, 96) for name in models}
    packed = sp.pack(models, "hadamard", method=method, base=base, **fitted(method, x))
    layer = sp.crosstalk(packed, models, x).layers[0]
    noise = [error(packed, net, name, x[name]) ** 2 for name, net in models.items()]
    assert layer.measured == pytest.approx(sum(noise) / 4, rel=1e-3)
    assert layer.predicted == pytest.approx(layer.measured, rel=0.1)
    assert 0.05 < layer.measured < 2


@pytest.mark.parametrize("method", ["sum", "solve"])
def test_low_rank_parts_are_no_crosstalk(method):
    torch.manual_seed(0)
    models = {name: nn.Sequential(nn.Linear(96, 64)) for name in "abcd"}
    x = {name: torch.randn(800, 96) for name in models}
    packed = sp.pack(models, "hadamard", method=method, rank=8, **fitted(method, x))
    layer = sp.crosstalk(packed, models, x).layers[0]
    noise = [error(packed, net, name, x[name]) ** 2 for name, net in models.items()]
    assert layer.measured == pytest.approx(sum(noise) / 4, rel=1e-3)
    expected = pytest.approx(layer.measured, rel=0.2) if method == "sum" else None
    assert layer.predicted == expected


def test_one_model_has_no_crosstalk_and_a_trained_one_no_prediction():
    models, x = nets(MLP, "a"), inputs("a")
    found = sp.crosstalk(sp.pack(models, calibration=x), models, x)
    assert found.outputs["a"] < 1e-6
    assert found.agreement["a"] == 1
    assert all(layer.measured < 1e-5 for layer in found.layers)
    trained = sp.superpose(models["a"], tasks=["a", "b"])
    snapshots = {task: sp.unsuperpose(trained, task) for task in trained.tasks}
    same = sp.crosstalk(trained, snapshots, {"a": x["a"], "b": x["a"]})
    assert all(layer.predicted is None and layer.measured < 1e-9 for layer in same.layers)
    assert "–" in str(same)
    assert same.as_dict()["layers"][0]["layer"] == "hidden.0.weight"
    with pytest.raises(sp.SuperposeError, match="task 'b' needs its model and its inputs"):
        sp.crosstalk(trained, models, x)


def two_layers():
    return nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 4, bias=False))


@pytest.mark.parametrize("method", ["sum", "solve"])
def test_a_layer_that_gives_only_zeros_has_no_share_of_noise(method):
    models, x = nets(two_layers, "abc"), inputs("abc")
    for name in "bc":
        nn.init.zeros_(models[name][2].weight)
    packed = sp.pack(models, method=method, **fitted(method, x))
    last = sp.crosstalk(packed, models, x).layers[-1]
    assert last.measured == pytest.approx(0, abs=1e-3)
    assert last.predicted == pytest.approx(0, abs=1e-3)
    planned = sp.plan(models["b"], tasks=3, method=method, inputs=x["b"])
    assert planned.layers[-1].noise == 0
    assert planned.layers[0].noise >= 0


def test_only_contexts_that_turn_something_are_predicted():
    models, x = nets(MLP, "abc"), inputs("abc", points=60)
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
    alike = sp.plan(models["b"], "hadamard", tasks=4, method="sum", inputs=sides["b"])
    assert alike.layers[0].noise == pytest.approx(3, rel=0.2)


OPTIONS = {
    "base": {},
    "low rank": {"rank": 2},
    "centred": {"centre": "task"},
    "centred rows": {"centre": "rows"},
    "learned contexts": {"learnable": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_trained_model_is_measured_by_what_it_computes(options):
    """Its gate, means, low-rank parts and learned contexts included, layer by layer."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 4)), inputs("abc")
    model = sp.superpose(net, "phase", tasks=list("abc"), base=True, **options)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    snapshots = {"b": net, "c": net}  # which never begin
    for task in "ab":
        model.begin(task)
        for _ in range(3):
            optimiser.zero_grad()
            (model(x[task], task=task) - 3).square().mean().backward()
            optimiser.step()
        snapshots[task] = sp.unsuperpose(model, task).requires_grad_(False)
        if task == "a":
            now = {task: sp.unsuperpose(model, task) for task in "abc"}
            same = sp.crosstalk(model, now, x)
            assert [layer.measured for layer in same.layers] == [0, 0]
            assert [sp.crosstalk(model, snapshots, x).outputs[task] for task in "bc"] == [0, 0]
    found = sp.crosstalk(model.train(), snapshots, x)
    assert model.training
    assert all(layer.predicted is None for layer in found.layers)
    read, before = sp.unsuperpose(model.eval(), "a"), snapshots["a"]
    pairs = [(read[0](x["a"]), before[0](x["a"])), (read(x["a"]), before(x["a"]))]
    for layer, (y, wanted) in zip(found.layers, pairs, strict=True):
        noise = (y - wanted).double().square().sum() / wanted.double().square().sum()
        assert noise > 1e-3
        assert layer.measured == pytest.approx(noise.item() / 3, rel=1e-4)  # b and c have none


@pytest.mark.parametrize("part", range(3), ids=["queries", "keys", "values"])
def test_a_trained_model_is_measured_in_all_parts_of_its_attention(part):
    torch.manual_seed(0)
    model = sp.superpose(Crossing(), tasks=["a", "b"])
    sides = {name: [torch.randn(5, 3, 64), torch.randn(5, 3, 64)] for name in "ab"}
    before = {name: sp.unsuperpose(model, name) for name in "ab"}
    with torch.no_grad():
        model.attention.stored("in_proj_weight")[64 * part : 64 * (part + 1)] *= 2
    found = sp.crosstalk(model, before, sides).layers[0]
    inputs = {name: (x, 30 * y, y) for name, (x, y) in sides.items()}
    noise = 0.0
    for name, given in inputs.items():
        weights = before[name].attention.in_proj_weight.split(64)
        parts = [(z @ w.T).square().sum() for z, w in zip(given, weights, strict=True)]
        noise += (parts[part] / sum(parts)).item() / 2
    assert found.measured == pytest.approx(noise, rel=1e-4)


@pytest.mark.parametrize("family", ["complex", "onepower"])
def test_complex_networks_are_refused(family):
    net, x = nn.Linear(6, 3), torch.randn(5, 6)
    model = sp.superpose(net, family, tasks=["a", "b"])
    models = {task: sp.unsuperpose(model, task) for task in "ab"}
    with pytest.raises(sp.SuperposeError, match=r"complex-valued.*real ones alone: use 'phase'"):
        sp.crosstalk(model, models, dict.fromkeys("ab", x + 0j))
