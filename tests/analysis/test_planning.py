"""Plans, against what packing then does."""

import math

import pytest
import torch
from packing.problems import MLP, cnn, correlated
from torch import nn

import superpose as sp


def test_a_plan_is_what_packing_then_does():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    models = {name: nn.Sequential(nn.Linear(96, 24)) for name in "abcd"}
    x = {name: correlated(3000, 96, generator, 0.95) for name in models}
    planned = sp.plan(models["a"], "hadamard", tasks=4, inputs=x["a"], noise=0.02)
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
    net = MLP(64, 32, 4)
    planned = sp.plan(net, tasks=10, rank=20)
    assert [layer.inputs for layer in planned.layers] == [64, 32, 32]
    assert planned.layers[0].noise < planned.layers[1].noise
    assert planned.bottleneck.layer == "hidden.1.weight"
    cost = sp.superpose(net, tasks=10).cost()
    learned = cost.shared_bytes + 10 * cost.private_bytes_per_task
    assert (planned.stored_bytes, planned.separate_bytes) == (learned, cost.separate_bytes)
    text = str(planned)
    assert "the bottleneck is hidden.1.weight" in text
    assert f"{cost.separate_bytes:,} as separate files" in text
    assert planned.as_dict()["layers"][0]["noise"] == planned.layers[0].noise
    full = sp.plan(net, tasks=10)
    assert full.layers[0].noise == pytest.approx(0.9, rel=1e-3)  # (K − 1) / K
    assert sp.plan(net, tasks=1).noise == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("family", ["binary", "hadamard"])
def test_a_plan_for_the_sum_is_proposition_2(family):
    net = nn.Sequential(nn.Linear(256, 64, bias=False))
    x = torch.randn(500, 256)
    planned = sp.plan(net, family, tasks=5, method="sum", inputs=x)
    assert planned.layers[0].noise == pytest.approx(4, rel=0.1)  # isotropic: K − 1
    assert planned.layers[0].width == math.ceil(256 * planned.layers[0].noise / 0.05)
    assert planned.noise == planned.layers[0].noise


def test_a_plan_for_convolutions_and_attention():
    planned = sp.plan(cnn().eval(), tasks=3, inputs=torch.randn(64, 3, 6, 6))
    assert [layer.layer for layer in planned.layers] == ["0.weight", "3.weight", "6.weight"]
    assert [layer.inputs for layer in planned.layers] == [27, 36, 96]
    encoder = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)).eval()
    names = [
        layer.layer for layer in sp.plan(encoder, tasks=3, inputs=torch.randn(40, 3, 16)).layers
    ]
    assert names[:2] == ["0.self_attn.in_proj_weight", "0.self_attn.out_proj.weight"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 0}, "tasks=0: plan for at least one"),
        ({"tasks": []}, "tasks is empty: give a number of tasks, or their names"),
        ({"tasks": 1.5}, "tasks=1.5: give a number of tasks, or names"),
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
        sp.plan(MLP(), **options)


def test_a_plan_is_for_a_plain_network():
    with pytest.raises(sp.SuperposeError, match=r"superposed: plan for unsuperpose\(model, task\)"):
        sp.plan(sp.superpose(MLP()), tasks=2)


def test_names_of_tasks_are_counted():
    assert sp.plan(MLP(), tasks=["a", "b", "c"]) == sp.plan(MLP(), tasks=3)


def test_a_plan_leaves_out_what_packing_would():
    net = nn.ModuleDict({"rnn": nn.LSTM(8, 8), "head": nn.Linear(8, 4)})
    with pytest.raises(sp.SuperposeError, match="LSTM 'rnn' is not one linear map"):
        sp.plan(net, tasks=3)
    for option in ("private_layers", "skip"):
        assert [one.layer for one in sp.plan(net, tasks=3, **{option: ["rnn"]}).layers] == [
            "head.weight"
        ]


def test_small_layers_that_will_be_the_bottleneck_are_named():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(256, 4)
    )
    found = sp.plan(net, "hadamard", tasks=4)
    assert [one.layer for one in found.small] == ["0.weight"]
    assert found.small[0].numbers == 8 * 27
    told = "min_inputs=33 of superpose() gives every task its own of 0.weight: 216 numbers a task"
    assert told in str(found)
    assert found.as_dict()["small"] == ["0.weight"]
    own = sp.plan(net, "hadamard", tasks=4, min_inputs=33)
    assert [one.layer for one in own.layers] == ["2.weight", "4.weight"]
    assert not own.small
    assert "min_inputs" not in str(own)
