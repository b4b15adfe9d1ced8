"""Which key each weight of a network has: with tests/test_keys.py, the format of every file.

All weights are ones, so that what a task reads out of a weight is the context itself.
"""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

import superpose as sp
from superpose import keys
from superpose.keys import Key

SEED, TASK = 11, 2
TURN = 2**32  # in the steps that phases are drawn in


class Network(nn.Module):
    """Every kind of layer, under names of every kind."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"fc": nn.Linear(40, 3), "conv": nn.Conv2d(4, 2, 3)})
        self.blocks = nn.Sequential(nn.Conv2d(8, 4, 3, groups=2), nn.ReLU(), nn.Linear(40, 3))
        self.up = nn.ConvTranspose2d(16, 2, 2)
        self.attention = nn.MultiheadAttention(32, 2)
        self.cross = nn.MultiheadAttention(32, 2, kdim=24, vdim=28)
        self.rnn = nn.LSTM(36, 24, 2, bidirectional=True)


def ones(net):
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(1)
    return net


def zeros(net):
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    return net


def digest(array):
    little = np.ascontiguousarray(array.astype("<i8"))
    return hashlib.sha256(little.tobytes()).hexdigest()[:16]


def signs(layer, count, task=TASK):
    return keys.signs(Key(SEED, layer, task), count)


@pytest.fixture(scope="module")
def read():
    """What the third task reads out of each weight."""
    return sp.unsuperpose(sp.superpose(ones(Network()), tasks=["a", "b", "c"], seed=SEED), "c")


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ("encoder.fc.weight", "59994a98361e2a40"),
        ("encoder.conv.weight", "de32872d1e21159c"),
        ("blocks.2.weight", "76ff530000a97c35"),
        ("attention.in_proj_weight", "eab54dc21cc78f2d"),
        ("attention.out_proj.weight", "c02303d31c2889a4"),
        ("cross.q_proj_weight", "e78c25b929d1f6bc"),
        ("cross.k_proj_weight", "a29094b5c2b3c599"),
        ("cross.v_proj_weight", "92795121e1bcb88f"),
        ("cross.out_proj.weight", "4e2c24b695c97fbb"),
        ("rnn.weight_ih_l0", "cd0517fb17109796"),
        ("rnn.weight_hh_l0", "80af86c79d1ab50c"),
        ("rnn.weight_ih_l0_reverse", "d4be3a0c1a8e7371"),
        ("rnn.weight_ih_l1", "8c04a57ac1bfe940"),
        ("rnn.weight_hh_l1_reverse", "5d66ac43f71430bb"),
    ],
)
def test_a_weight_has_the_key_of_its_name(read, weight, expected):
    rows = read.get_parameter(weight).detach().flatten(1)
    assert torch.equal(rows, rows[:1].expand_as(rows)), "all outputs have one context"
    found = rows[0].numpy()
    assert np.array_equal(found, signs(weight, len(found)))
    assert digest(found) == expected


@pytest.mark.parametrize(("group", "expected"), [(0, "2185ed29131d0509"), (1, "da743c14442e0e96")])
def test_a_group_has_a_key_of_its_own(read, group, expected):
    rows = read.get_parameter("blocks.0.weight").detach().flatten(1)[2 * group :][:2]
    found = rows[0].numpy()
    assert torch.equal(rows[0], rows[1])
    assert np.array_equal(found, signs(f"blocks.0.weight:{group}", 36))
    assert digest(found) == expected


def test_a_transposed_convolution_has_its_inputs_first(read):
    outputs = read.up.weight.detach().movedim(0, 1).flatten(1)  # (outputs, inputs · positions)
    assert torch.equal(outputs[0], outputs[1])
    found = outputs[0].numpy()
    assert np.array_equal(found, signs("up.weight", 64))
    assert digest(found) == "52e96fd221d3227c"


def test_channels_have_the_key_of_the_weight_too():
    net = nn.ModuleDict({"one": nn.Conv2d(20, 2, 3), "two": nn.Conv2d(40, 4, 3, groups=2)})
    model = sp.superpose(ones(net), tasks=3, seed=SEED, conv="channel")
    plain = sp.unsuperpose(model, TASK)
    channels = plain["one"].weight.detach()[0, :, 0, 0].numpy()
    assert np.array_equal(channels, signs("one.weight", 20))
    for group in range(2):
        channels = plain["two"].weight.detach()[2 * group, :, 0, 0].numpy()
        assert np.array_equal(channels, signs(f"two.weight:{group}", 20))
    assert digest(channels) == "dc20f8d0941a27fe"


def test_a_layer_that_is_the_whole_network_has_no_name():
    model = sp.superpose(ones(nn.Linear(40, 3)), tasks=3, seed=SEED)
    found = sp.unsuperpose(model, TASK).weight[0].detach().numpy()
    assert np.array_equal(found, signs("weight", 40))
    assert digest(found) == "78e858d8545d1c02"


@pytest.mark.parametrize(
    ("weight", "key", "expected"),
    [
        ("encoder.fc.weight", "encoder.fc.change.weight", "bd353cf354858fdd"),
        ("blocks.0.weight", "blocks.0.change.weight:0", "55323bb1d7e6ad14"),
        ("blocks.2.weight", "blocks.2.change.weight", "b9e8bd591a36446b"),
        ("attention.in_proj_weight", "attention.change.in_proj_weight", "85b4de3bd5719a67"),
        ("attention.out_proj.weight", "attention.out_proj.change.weight", "db0e8acb75111249"),
    ],
)
def test_changes_from_a_base_have_keys_of_their_own(weight, key, expected):
    """The second task reads C(0)⁻¹ C(1) of a stored one."""
    models = {"one": ones(Network()), "none": zeros(Network())}
    base = zeros(Network())
    packed = sp.pack(models, method="delta", base=base, seed=SEED)
    found = sp.unpack(packed, "none").get_parameter(weight).detach().flatten(1)[0].numpy()
    assert np.array_equal(found, signs(key, len(found), 0) * signs(key, len(found), 1))
    assert digest(found) == expected


def steps(phasors):
    """Phases in whole steps of 2⁻³² turns."""
    return np.rint(np.angle(phasors.detach().numpy()) / (2 * np.pi) * TURN).astype(int) % TURN


def drawn(layer, task, count):
    return (keys.phases(Key(SEED, layer, task), count) * TURN).astype(int) % TURN


def complex_network():
    """Layers that have a complex form."""
    inside = nn.Sequential(nn.Linear(40, 3), nn.Conv2d(4, 2, 3))
    return ones(nn.ModuleDict({"encoder": inside})).double()


@pytest.mark.parametrize("family", ["complex", "onepower"])
@pytest.mark.parametrize(
    ("weight", "expected"),
    [("encoder.0.weight", "d3b3661aca950d69"), ("encoder.1.weight", "aa3636685c9aab71")],
)
def test_initial_phases_have_a_key_of_their_own(family, weight, expected):
    model = sp.superpose(complex_network(), family, tasks=3, seed=SEED)
    stored = sp.unsuperpose(model).get_parameter(weight).flatten()
    torch.testing.assert_close(stored.abs(), torch.ones_like(stored.real))
    found = steps(stored)
    assert np.array_equal(found, drawn(f"{weight}:initial", 0, len(found)))
    assert digest(found) == expected


@pytest.mark.parametrize("family", ["complex", "onepower"])
def test_initial_phases_of_a_layer_that_is_the_whole_network(family):
    model = sp.superpose(ones(nn.Linear(40, 3).double()), family, tasks=3, seed=SEED)
    found = steps(sp.unsuperpose(model).weight.flatten())
    assert np.array_equal(found, drawn(".weight:initial", 0, 120))  # with a dot before it
    assert digest(found) == "770952c76ac4e009"


def turned(family, weight, task):
    """The phases of the context that a task reads a complex weight with."""
    model = sp.superpose(complex_network(), family, tasks=4, seed=SEED)
    stored = sp.unsuperpose(model).get_parameter(weight)
    return steps((sp.unsuperpose(model, task).get_parameter(weight) / stored).flatten(1)[0])


@pytest.mark.parametrize(
    ("weight", "expected"),
    [("encoder.0.weight", "83e3be717786f822"), ("encoder.1.weight", "584d7dc6218edca8")],
)
def test_complex_contexts_have_the_key_of_the_weight(weight, expected):
    found = turned("complex", weight, 3)
    assert np.array_equal(found, drawn(weight, 3, len(found)))
    assert digest(found) == expected


@pytest.mark.parametrize(
    ("weight", "expected"),
    [("encoder.0.weight", "14744eb46f648594"), ("encoder.1.weight", "0905c56deed51398")],
)
def test_powers_have_the_key_of_the_first_task(weight, expected):
    found = turned("onepower", weight, 3)
    assert np.array_equal(found, 3 * drawn(weight, 1, len(found)) % TURN)
    assert digest(found) == expected
    assert not turned("onepower", weight, 0).any()
