"""The ways of computing a mixed batch: each gives the values and gradients of rows alone."""

import copy

import pytest
import torch
from cases import every_family
from checks import gradients, randomise_private, rows_one_by_one
from networks import cnn, mlp, nets
from torch import nn
from torch.utils.checkpoint import checkpoint

import superpose as sp
from superpose.model import probe

TASKS = [2, 0, 1, 2, 3, 0]
ways = pytest.mark.parametrize("way", ["direct", "mapped", "grouped"])


def assert_rows_as_alone(model, x, tasks=TASKS):
    mixed, each = model(x, task=tasks), rows_one_by_one(model, tasks, x)
    torch.testing.assert_close(mixed, each)
    found, expected = gradients(model, mixed), gradients(model, each)
    assert found.keys() == expected.keys()
    assert any(" of " in name for name in found)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    flipped = model(x, task=tasks[::-1])
    assert (mixed - flipped).abs().max() > 1e-3


@ways
@every_family
def test_every_family(family, way):
    model = randomise_private(sp.superpose(mlp(), family, tasks=4, mixed=way))
    assert_rows_as_alone(model, torch.randn(6, 12))
    assert model.summary().mixed == [way]


@ways
@pytest.mark.parametrize("conv", ["kernel", "channel"])
def test_convolutions_and_norms(conv, way):
    model = randomise_private(sp.superpose(cnn(), tasks=4, mixed=way, conv=conv)).eval()
    assert_rows_as_alone(model, torch.randn(6, 3, 6, 6))


@ways
def test_learned_contexts(way):
    model = sp.superpose(mlp(), "rotation", tasks=4, learnable=True, mixed=way)
    assert_rows_as_alone(randomise_private(model), torch.randn(6, 12))


class Named(nn.Module):
    """Takes and returns structures, and something that is not for any row."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, given, scale=1.0, *, shift=None):
        x, (y, common) = given["x"], given["pair"]
        hidden = self.inner(x + y.unsqueeze(1)).tanh() * common * scale
        out = self.outer(hidden if shift is None else hidden + shift)
        return {"out": out, "both": (hidden.mean(1), [hidden.transpose(0, 1)]), "kind": "named"}


@ways
def test_what_is_given_and_returned_may_be_a_structure(way):
    torch.manual_seed(0)
    model = randomise_private(sp.superpose(Named(), tasks=4, mixed=way))
    x, y, common = torch.randn(6, 6, 6), torch.randn(6, 6), torch.randn(1, 1, 8)
    shift = torch.randn(6, 1, 8)

    def run(rows, task):
        given = {"x": x[rows], "pair": (y[rows], common)}
        return model(given, 0.5, shift=shift[rows], task=task)

    mixed = run(slice(None), TASKS)
    alone = [run(slice(row, row + 1), task) for row, task in enumerate(TASKS)]
    assert mixed["kind"] == "named"
    torch.testing.assert_close(mixed["out"], torch.cat([one["out"] for one in alone]))
    torch.testing.assert_close(mixed["both"][0], torch.cat([one["both"][0] for one in alone]))
    torch.testing.assert_close(
        mixed["both"][1][0], torch.cat([one["both"][1][0] for one in alone], 1)
    )
    with model.task(TASKS):
        assert torch.equal(run(slice(None), None)["out"], mixed["out"])


class Precise(nn.Module):
    """Gives single precision, whatever its layers compute in."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])

    def forward(self, x):
        return self.net(x).float()


@pytest.mark.parametrize("way", ["auto", "direct", "grouped"])
@pytest.mark.parametrize("autocast", [True, False])
def test_low_precision(autocast, way):
    torch.manual_seed(0)
    net = Precise() if autocast else Precise().bfloat16()
    model = randomise_private(sp.superpose(net, tasks=4, mixed=way))
    x = torch.randn(6, 5, 64).to(next(net.parameters()).dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        mixed, each = model(x, task=TASKS), rows_one_by_one(model, TASKS, x)
    assert mixed.dtype == each.dtype == torch.float32
    size = each.abs().max()
    assert (mixed - each).abs().max() < 0.03 * size
    assert (mixed - model(x, task=1).float()).abs().max() > 0.3 * size


class Again(nn.Module):
    """Computes its activations again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(6, 8), nn.Linear(8, 3), nn.LayerNorm(8)

    def forward(self, x):
        inner = checkpoint(
            lambda x: self.scale(self.first(x)).tanh(),
            x,
            use_reentrant=False,
            context_fn=sp.same_task,
        )
        return self.last(inner)


@pytest.mark.parametrize("way", ["direct", "grouped"])
def test_activations_that_are_computed_again(way):
    torch.manual_seed(0)
    model = randomise_private(sp.superpose(Again(), tasks=4, mixed=way))
    assert_rows_as_alone(model, torch.randn(6, 6))


def test_activations_that_are_computed_again_are_not_mapped():
    model = sp.superpose(Again(), tasks=4, mixed="mapped")
    with pytest.raises(sp.SuperposeError, match="computed again cannot be mapped over rows"):
        model(torch.randn(6, 6), task=TASKS)


@pytest.mark.parametrize("way", ["auto", "grouped"])
def test_random_pairing(way):
    packed = sp.pack(nets(), method="delta", random_pairing=True)
    packed.mixed = way
    x, tasks = torch.randn(4, 12), ["c", "a", "b", "a"]
    mixed = packed(x, task=tasks)
    torch.testing.assert_close(mixed, rows_one_by_one(packed, tasks, x))
    assert (mixed - packed(x, task=tasks[::-1])).abs().max() > 1e-2


@ways
def test_dropout_differs_from_row_to_row(way):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 64, bias=False))
    model = sp.superpose(net, "identity", tasks=4, mixed=way)
    x = torch.randn(1, 6).expand(4, 6).contiguous()
    y = model(x, task=[0, 1, 2, 3])
    assert min((y[i] - y[j]).abs().max() for i in range(4) for j in range(i)) > 1e-3
    assert (y - model(x, task=[0, 1, 2, 3])).abs().max() > 1e-3
    state = torch.get_rng_state()
    fresh = copy.deepcopy(model)
    fresh.superposition.ways.clear()
    fresh(x, task=[0, 1, 2, 3])
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    model(x, task=[0, 1, 2, 3])
    assert torch.equal(torch.get_rng_state(), after), "finding out the way draws no numbers"


def test_a_way_that_does_not_exist():
    with pytest.raises(sp.SuperposeError, match="quickly"):
        sp.superpose(mlp(), mixed="quickly")
    model = sp.superpose(mlp())
    with pytest.raises(sp.SuperposeError, match="quickly"):
        model.mixed = "quickly"


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x - x.mean(0))


@pytest.mark.parametrize("way", ["auto", "direct", "mapped", "grouped"])
def test_rows_that_change_each_other_are_an_error(way):
    model = sp.superpose(Centred(), tasks=4, mixed=way)
    with pytest.raises(sp.SuperposeError, match="other values when other rows are beside it"):
        model(torch.randn(6, 6), task=TASKS)


def test_a_norm_that_begins_to_take_statistics_is_seen():
    model, x = sp.superpose(cnn(), tasks=4).train(), torch.randn(6, 3, 6, 6)
    model[1].eval()
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    model[1].train()
    with pytest.raises(sp.SuperposeError, match="'1' takes statistics over the rows of the batch"):
        model(x, task=TASKS)
    model[1].eval()
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


class Changing(nn.Module):
    """Returns more, or computes activations again, when it is told to."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 6), nn.Parameter(torch.ones(6))
        self.more = self.again = False

    def forward(self, x):
        run = lambda x: self.layer(x).tanh() * self.scale  # noqa: E731
        if self.again:
            y = checkpoint(run, x, use_reentrant=False, context_fn=sp.same_task)
        else:
            y = run(x)
        return (y, x.transpose(0, -1)) if self.more else (y,)


@pytest.mark.parametrize("way", ["auto", "grouped"])
def test_the_way_is_found_out_again_when_the_network_changes(way):
    torch.manual_seed(0)
    model = randomise_private(sp.superpose(Changing(), tasks=4, mixed=way))
    x = torch.randn(6, 6)

    def each(x):
        return torch.cat([model(x[[row]], task=task)[0] for row, task in enumerate(TASKS)])

    for model.more, model.again in ((False, False), (True, False), (True, True), (False, True)):
        mixed, *rest = model(x, task=TASKS)
        torch.testing.assert_close(mixed, each(x))
        torch.testing.assert_close(gradients(model, mixed), gradients(model, each(x)))
        assert [torch.equal(y, x.T) for y in rest] == [True] * model.more


class Turned(nn.Module):
    """Its layer is given the tokens first; with as many tokens as rows that cannot be seen."""

    def __init__(self, bias):
        super().__init__()
        self.layer = nn.Linear(6, 4, bias=bias)

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


def learned_by_all(model):
    """Each task has learned from inputs around a mean of its own."""
    optimiser = torch.optim.SGD(model.train().parameters(), 0.5)
    for task in model.tasks:
        optimiser.zero_grad()
        model(torch.randn(3, 3, 6) + 4 * task, task=task).square().mean().backward()
        optimiser.step()
    return model.eval()


@pytest.mark.parametrize(
    ("family", "bias", "options"),
    [
        pytest.param("hadamard", False, {"base": True}, id="weights that are closed to all"),
        pytest.param("identity", False, {"centre": "task"}, id="means of nothing yet"),
        pytest.param("identity", True, {}, id="biases that are the same"),
    ],
)
def test_the_way_is_right_for_what_tasks_will_have(family, bias, options):
    """It is found out before any of them has learned, when nothing tells them apart."""
    torch.manual_seed(0)
    model = sp.superpose(Turned(bias), family, tasks=3, **options).eval()
    x, tasks = torch.randn(3, 3, 6), [0, 1, 2]
    model(x, task=tasks)
    found = model.summary().mixed
    learned_by_all(model)
    expected = rows_one_by_one(model, tasks, x)
    torch.testing.assert_close(model(x, task=tasks), expected)
    assert model.summary().mixed == found
    assert "not direct" in found[0]
    others = [rows_one_by_one(model, [task] * 3, x) for task in (0, 1)]
    assert (others[0] - others[1]).abs().max() > 1e-2


def test_the_way_is_not_found_out_by_outputs_that_are_not_finite():
    class Folded(nn.Module):  # one row's outputs are in another's place: direct is wrong
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):  # (rows, 2, 4)
            return self.linear(x.transpose(0, 1)).transpose(0, 1)

    torch.manual_seed(0)
    model = sp.superpose(Folded(), tasks=2, private="shared").eval()
    weight = model.linear.weight.detach().clone()
    x = torch.randn(2, 2, 4)
    with torch.no_grad():
        model.linear.weight.fill_(float("nan"))
        assert model(x, task=[0, 1]).isnan().all()
        assert not model.superposition.ways
        model.mixed = "direct"
        with pytest.raises(sp.SuperposeError, match="nothing finite, so no quicker way"):
            model(x, task=[0, 1])
        model.mixed = "auto"
        model.linear.weight.copy_(weight)
        alone = torch.cat([model(x[k : k + 1], task=k) for k in range(2)])
        torch.testing.assert_close(model(x, task=[0, 1]), alone)
    assert [way.name for way in model.superposition.ways.values()] != ["direct"]


def test_the_ways_of_many_kinds_of_batches_are_not_all_kept(monkeypatch):
    monkeypatch.setattr(probe, "MOST_KINDS", 2)
    model, kinds = sp.superpose(mlp(), tasks=3), []
    for rows in (12, 5, 3):  # 12 and 5 are sizes of the network, too
        x = torch.randn(rows, 12)
        model(x, task=[row % 3 for row in range(rows)])
        model.train(not model.training)
        kinds.append(len(model.superposition.ways))
    assert kinds == [1, 2, 1]
