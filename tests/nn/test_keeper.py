"""Tensors that a module keeps beside the layers in it: class tokens, positions, layer scales."""

import copy

import pytest
import torch
import torch.nn.functional as F
from checks import (
    TASKS,
    assert_plain_bit_for_bit,
    copies,
    learned_gradients,
    randomise_private,
    rows_one_by_one,
    whole_state,
)
from networks import Relative
from torch import nn

import superpose as sp
from superpose.nn.private import is_private


class Tokens(nn.Module):
    """As vision transformers do it: x (B, 3, 4), and a token of its own in front."""

    def __init__(self, way="expand"):
        super().__init__()
        self.way = way
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 4, 4))
        self.scale = nn.Parameter(torch.randn(6))
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        if self.way == "expand":
            first = self.token.expand(len(x), -1, -1)
        elif self.way == "repeat":
            first = self.token.repeat(len(x), 1, 1)
        else:
            first = self.token[0].sigmoid().unsqueeze(0).expand([len(x), 1, 4])
        x = torch.cat((first, x), 1) + self.positions.to(x.dtype)
        return self.head(self.layer(x).tanh() * self.scale).sum(1)


class Block(nn.Module):
    """As convolutional networks do it: maps (B, 4, 6, 6), scaled by channel."""

    def __init__(self, way="maps"):
        super().__init__()
        self.conv, self.way = nn.Conv2d(4, 4, 3, padding=1), way
        self.scale = nn.Parameter(torch.randn(4, 1, 1) if way == "maps" else torch.randn(4))

    def forward(self, x):
        scale = self.scale if self.way == "maps" else self.scale.reshape(1, -1, 1, 1)
        return (x + torch.mul(scale, self.conv(x))).mean((2, 3))


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([torch.randn(6), torch.randn(1)])
        self.layer = nn.Linear(4, 6)

    def forward(self, x):
        return self.layer(x).mul_(self.scales[0]) / (self.scales[1].square() + 1)


class Uses(nn.Module):
    """Does something with a vector of its own and what a layer gives."""

    def __init__(self, use):
        super().__init__()
        self.own, self.layer, self.use = nn.Parameter(torch.randn(4)), nn.Linear(4, 4), use

    def forward(self, x):
        return self.use(self.own, self.layer(x))


KEEPERS = {
    "normed table": lambda: (Relative(nn.LayerNorm(4)), (3, 4)),
    "table": lambda: (nn.Sequential(Relative(nn.Identity())), (3, 4)),
    "expanded token": lambda: (nn.Sequential(Tokens("expand")), (3, 4)),
    "repeated token": lambda: (nn.Sequential(Tokens("repeat")), (3, 4)),
    "computed token": lambda: (nn.Sequential(Tokens("compute")), (3, 4)),
    "the network itself": lambda: (Tokens(), (3, 4)),
    "scale of maps": lambda: (nn.Sequential(Block("maps")), (4, 6, 6)),
    "scale of channels": lambda: (nn.Sequential(Block("channels")), (4, 6, 6)),
    "list": lambda: (Listed(), (4,)),
}
keepers = pytest.mark.parametrize("name", KEEPERS)


def made(name):
    torch.manual_seed(0)
    net, shape = KEEPERS[name]()
    return net, torch.randn(5, *shape)


@keepers
def test_identity_is_the_plain_network_bit_for_bit(name):
    assert_plain_bit_for_bit(*made(name))


@keepers
@pytest.mark.parametrize("family", ["binary", "hadamard"])
def test_each_task_has_its_own(name, family):
    net, x = made(name)
    model = randomise_private(sp.superpose(net, family, tasks=4))
    y = model(x, task=1)
    torch.testing.assert_close(sp.unsuperpose(model, 1)(x), y)
    assert type(sp.unsuperpose(model)) is type(net)
    assert set(sp.unsuperpose(model).state_dict()) == set(net.state_dict())
    assert (y - model(x, task=2)).abs().max() > 1e-2
    mixed = model(x, task=TASKS)
    torch.testing.assert_close(mixed, rows_one_by_one(model, TASKS, x))


@keepers
def test_rows_of_many_tasks_teach_each_task_its_own(name):
    net, x = made(name)
    model = randomise_private(sp.superpose(net, tasks=4))
    alone = copy.deepcopy(model)
    model(x, task=TASKS).square().sum().backward()
    rows_one_by_one(alone, TASKS, x).square().sum().backward()
    expected, found = learned_gradients(alone), learned_gradients(model)
    assert any(" of " in n for n in found)
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient)


@keepers
def test_copies_pickles_and_files(name, tmp_path):
    net, x = made(name)
    model = randomise_private(sp.superpose(net, tasks=4))
    expected = model(x, task=TASKS)
    for other in copies(model, net, tmp_path / "model.safetensors"):
        assert torch.equal(other(x, task=TASKS), expected)


@keepers
def test_compiled(name):
    net, x = made(name)
    model = randomise_private(sp.superpose(net, tasks=4))
    torch._dynamo.reset()
    run = torch.compile(model.run, fullgraph=True, backend="eager")
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        for task in (1, 3):
            torch.testing.assert_close(run(model.selection(task), x), model(x, task=task))
        each = rows_one_by_one(model, TASKS, x)
        torch.testing.assert_close(compiled(x, task=TASKS), each)


@pytest.mark.parametrize("rows", [2, 3, 4, 6])
def test_tables_as_long_as_the_batch(rows):
    torch.manual_seed(0)
    model = randomise_private(sp.superpose(Relative(nn.LayerNorm(4)), tasks=4, batch_dim=0))
    x, tasks = torch.randn(rows, 3, 4), torch.arange(rows) % 4
    torch.testing.assert_close(model(x, task=tasks), rows_one_by_one(model, tasks.tolist(), x))


def test_vectors_are_private_and_the_rest_is_shared_unless_it_is_named():
    net = nn.Sequential(Tokens())
    vectors = ["0.token", "0.scale", "0.layer.bias", "0.head.bias"]
    summary = sp.superpose(net, tasks=2).summary()
    assert summary.private == vectors
    assert summary.shared == ["0.positions"]
    named = sp.superpose(net, tasks=4, private_layers=["0.positions"])
    assert named.summary().private == ["0.token", "0.positions", *vectors[1:]]
    whole = sp.superpose(nn.Sequential(net, nn.Linear(2, 2)), tasks=4, private_layers=["0.0"])
    assert whole.summary().superposed == ["1.weight"]
    assert whole.summary().shared == []
    for private in ("shared", "none"):
        model = sp.superpose(net, tasks=4, private=private, private_layers=["0.token"])
        assert model.summary().private == ["0.token"]
        assert {"0.positions", "0.scale"} <= set(model.summary().shared)
    torch.manual_seed(0)
    x = torch.randn(5, 3, 4)
    for model in (named, whole):
        randomise_private(model)
        torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))
        torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


def test_a_tensor_that_a_layer_has_too_is_the_layers():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.bias = self.layer.bias

        def forward(self, x):
            return self.layer(x)

    assert sp.superpose(Tied(), tasks=2).summary().private == ["layer.bias"]


def test_names_that_cannot_be_private():
    net = nn.Sequential(Tokens())
    with pytest.raises(
        sp.SuperposeError, match=r"'0\.layer\.weight' is one tensor of a layer.*'0\.layer'$"
    ):
        sp.superpose(net, private_layers=["0.layer.weight"])
    with pytest.raises(sp.SuperposeError, match=r"private_layers: there is no layer '0\.tokens'"):
        sp.superpose(net, private_layers=["0.tokens"])
    with pytest.raises(sp.SuperposeError, match=r"skip: there is no layer '0\.token'"):
        sp.superpose(net, skip=["0.token"])
    net[0].slot = "a name that superposed layers need"
    with pytest.warns(UserWarning, match="'0' already has 'slot'.* its own tensors stay shared"):
        assert "0.token" in sp.superpose(net).summary().shared
    for name in ("0", "0.token"):
        with pytest.raises(sp.SuperposeError, match="'0' already has 'slot'"):
            sp.superpose(nn.Sequential(net, nn.Linear(2, 2))[0], private_layers=[name])


@pytest.mark.parametrize(
    "use",
    [
        lambda own, x: torch.cat((own.expand(2, -1), x)),
        lambda own, x: x.flatten() + own.sum(),
    ],
)
def test_outputs_that_do_not_tell_the_rows_apart_are_errors(use):
    model = sp.superpose(Uses(use), tasks=4)
    with pytest.raises(sp.SuperposeError, match="folds the rows into other dimensions"):
        model(torch.randn(5, 4), task=TASKS)


@pytest.mark.parametrize(
    "use",
    [
        lambda own, x: x @ own,
        lambda own, x: F.layer_norm(x, (4,), own),
        lambda own, x: x * own.sum().item(),
        lambda own, x: torch.addcmul(x, x, own),
        lambda own, x: torch.maximum(own, x).lerp(x, own.sigmoid()),
        lambda own, x: torch.where(x > 0, x, own),
        lambda own, x: torch.where(own > 0, 1.0, own) - x,
        lambda own, x: x + F.linear(own, torch.ones(4, 4).triu()),
        lambda own, x: x * own.view(2, 2).flip(0).flatten(),
        lambda own, x: x + (own * nn.Parameter(torch.ones(5, 4).tril())).sum(0),
        lambda own, x: torch.cat((x, torch.stack((own, own)).mean(0).repeat(len(x), 1)), 1),
        lambda own, x: F.scaled_dot_product_attention(
            *[x.view(-1, 1, 2, 2)] * 3, attn_mask=own.view(1, 1, 2, 2)
        ),
    ],
)
def test_uses_of_a_tasks_own_vector(use):
    torch.manual_seed(0)
    model = randomise_private(sp.superpose(Uses(use), tasks=4))
    x = torch.randn(5, 4)
    each = rows_one_by_one(model, TASKS, x)
    torch.testing.assert_close(model(x, task=TASKS), each)
    apart = (model(x, task=1) - each).abs().reshape(5, -1).amax(1)
    assert apart[TASKS != 1].min() > 1e-3


def test_what_a_network_returns_of_its_own_is_no_value_of_all_rows():
    net = Uses(lambda own, x: {"y": x, "scale": own.exp()})
    model = randomise_private(sp.superpose(net, tasks=4))
    own = model.private["own"]
    with pytest.raises(sp.SuperposeError, match=r"returns a tensor of shape \(4,\) for all rows"):
        model(torch.randn(5, 4), task=TASKS)
    assert torch.equal(model(torch.randn(5, 4), task=1)["scale"], own.of(1).exp())
    assert torch.equal(model(torch.randn(1, 4), task=[1])["scale"], own.of(1).exp())


def test_rows_are_found_in_the_second_dimension():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.layer = nn.Parameter(torch.randn(1, 1, 4)), nn.Linear(4, 4)
            self.positions = nn.Parameter(torch.randn(3, 1, 4))

        def forward(self, x):  # (tokens, rows, 4)
            return self.layer(x + self.positions) + self.own + self.own.expand(1, x.shape[1], -1)

    torch.manual_seed(0)
    model = sp.superpose(Recurrent(), tasks=4, batch_dim=1, private_layers=["positions"])
    randomise_private(model)
    x = torch.randn(3, 5, 4)
    alone = torch.stack([model(x, task=task)[:, row] for row, task in enumerate(TASKS)], 1)
    torch.testing.assert_close(model(x, task=TASKS), alone)


def test_a_task_learns_its_own_and_leaves_the_others_alone():
    net, x = made("expanded token")
    model = sp.superpose(net, tasks=3)
    before = whole_state(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x, task=1).square().sum().backward()
    optimiser.step()
    changed = {n for n, t in whole_state(model).items() if not torch.equal(t, before[n])}
    assert {"0.token of 1", "0.scale of 1", "0.positions"} <= changed
    assert not {n for n in changed if " of " in n and not n.endswith(" of 1")}
    model.add_task("new")
    assert torch.equal(model[0].private["token"].of(3), net[0].token)
    assert any(is_private(name) for name in model.state_dict())
    model.remove_task(1)
    assert not any(is_private(name) for name in model.state_dict())


@pytest.mark.parametrize("method", ["sum", "delta", "solve"])
def test_models_that_differ_in_what_they_keep_are_packed(method):
    torch.manual_seed(0)
    nets = {name: Tokens() for name in "ab"}
    nets["b"].scale = nets["a"].scale
    rows = {name: torch.randn(40, 3, 4) for name in nets} if method == "solve" else None
    packed = sp.pack(nets, method=method, calibration=rows)
    assert not set(packed.summary().shared) & set(nets["a"].state_dict())
    for name, net in nets.items():
        out = sp.unpack(packed, name)
        assert torch.equal(out.token, net.token)
        assert torch.equal(out.positions, net.positions)
        assert torch.equal(out.scale, net.scale)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_a_parametrised_layer_can_be_private(norm):
    parametrise = getattr(nn.utils.parametrizations, norm)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), parametrise(nn.Linear(6, 3))).eval()
    x = torch.randn(5, 4)
    with pytest.warns(match="^1 stay shared"):
        shared = sp.superpose(net, tasks=3)
    assert "1.bias" in shared.summary().shared
    model = randomise_private(sp.superpose(net, tasks=3, private_layers=["1"]))
    assert "1.bias" in model.summary().private
    assert any("parametrizations" in name for name in model.summary().private)
    outs = [model(x, task=task) for task in range(3)]
    assert (outs[0] - outs[1]).abs().max() > 1e-2
    torch.testing.assert_close(sp.unsuperpose(model, 1)(x), outs[1])
    torch.testing.assert_close(copy.deepcopy(model)(x, task=2), outs[2])
    outs[1].sum().backward()
    tasks = [0, 1, 2, 0, 1]
    torch.testing.assert_close(model(x, task=tasks), rows_one_by_one(model, tasks, x))
    if norm == "weight_norm":  # the other keeps statistics
        other = copy.deepcopy(net)
        nn.init.normal_(other[1].parametrizations.weight.original1)
        packed = sp.pack({"a": net, "b": other}, method="sum")
        torch.testing.assert_close(sp.unpack(packed, "b")[1].weight, other[1].weight)


def test_packed_tables_of_positions_serve_rows_of_many_tasks():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.layer = nn.Embedding(8, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x + self.table(torch.arange(x.shape[1])))

    torch.manual_seed(0)
    packed = sp.pack({name: Positions() for name in "abc"}, method="sum")
    tasks = list("abcab")
    for tokens in (3, 5):  # as many as there are rows
        x = torch.randn(5, tokens, 4)
        mixed = packed(x, task=tasks)
        torch.testing.assert_close(mixed, rows_one_by_one(packed, tasks, x))
        assert (mixed - packed(x, task="a")).abs().max() > 1e-2
