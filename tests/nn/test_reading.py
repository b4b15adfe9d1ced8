"""Weights that a network reads without calling their layers."""

import pytest
import torch
import torch.nn.functional as F
from cases import real_family
from checks import TASKS, gradients, randomise_private, rows_one_by_one
from customised import Quadratic, RootMeanSquare
from torch import nn

import superpose as sp


class Reads(nn.Module):
    """Uses its layers without calling them, as window attention and fused kernels do."""

    def __init__(self, bias=True):
        super().__init__()
        self.inner = nn.Linear(7, 6, bias=bias)
        self.norm = nn.LayerNorm(6)
        self.kernel = nn.Conv1d(1, 4, 3)
        self.called = nn.Linear(16, 3)

    def forward(self, x):
        assert self.inner.weight.dtype == x.dtype
        y = F.linear(x, self.inner.weight, self.inner.bias)
        y = F.layer_norm(y, (6,), self.norm.weight, self.norm.bias)
        y = F.conv1d(y.unsqueeze(1), self.kernel.weight, self.kernel.bias)
        return self.called(y.flatten(1))


class Looks(nn.Module):
    """Looks at a weight's type and shape, and calls the layer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(7, 6)

    def forward(self, x):
        weight = self.inner.weight
        assert isinstance(weight, torch.Tensor)
        assert weight.shape == (6, 7)
        assert weight.size(0) == len(weight) == 6
        return self.inner(x.to(weight.dtype))


class Moves(Looks):
    """Goes where a weight is."""

    def forward(self, x):
        return super().forward(x.to(self.inner.weight.device))


@real_family
@pytest.mark.parametrize("bias", [True, False])
def test_a_weight_that_is_read_is_the_tasks(family, bias):
    torch.manual_seed(0)
    net, x = Reads(bias), torch.randn(5, 7)
    model = randomise_private(sp.superpose(net, family, tasks=4))
    y = model(x, task=1)
    plain = sp.unsuperpose(model, 1)
    torch.testing.assert_close(y, plain(x))
    assert (y - model(x, task=2)).abs().max() > 1e-2
    y.sum().backward()
    plain(x).sum().backward()
    stored, read = model.inner.weight.grad, plain.inner.weight.grad
    context = model.inner.contexts["weight"].derive(1)
    torch.testing.assert_close(context.bind_weight(stored.double()).float(), read)
    assert model.inner.weight is model.inner._parameters["weight"]


@pytest.mark.parametrize("way", ["mapped", "grouped"])
def test_a_weight_that_is_read_is_each_rows_own(way):
    torch.manual_seed(0)
    model, x = randomise_private(sp.superpose(Reads(), tasks=4, mixed=way)), torch.randn(5, 7)
    mixed, each = model(x, task=TASKS), rows_one_by_one(model, TASKS, x)
    torch.testing.assert_close(mixed, each)
    assert (mixed - model(x, task=1)).abs().amax(1)[TASKS != 1].min() > 1e-2
    torch.testing.assert_close(gradients(model, mixed), gradients(model, each))
    assert model.summary().mixed == [way]


def test_a_weight_that_is_read_is_not_that_of_all_rows():
    model, x = sp.superpose(Reads(), tasks=4), torch.randn(5, 7)
    model(x, task=TASKS)
    (told,) = model.summary().mixed
    assert told.startswith("mapped (not direct: the network uses a tensor of a layer without call")
    model.mixed = "direct"
    with pytest.raises(sp.SuperposeError, match="'direct' was chosen, and it is not right"):
        model(x, task=TASKS)


@pytest.mark.parametrize(("kind", "way"), [(Looks, "direct"), (Moves, "mapped")])
def test_a_weight_can_be_looked_at_with_rows_of_many_tasks(kind, way):
    model, x = randomise_private(sp.superpose(kind(), tasks=4)), torch.randn(5, 7)
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    assert model.summary().mixed[0].startswith(way)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the tracer looks; it hides it itself
def test_a_weight_that_is_read_is_the_tasks_in_a_compiled_network():
    torch.manual_seed(0)
    x = torch.randn(5, 7)
    norm = nn.Sequential(nn.Linear(7, 6), RootMeanSquare(6), nn.PReLU(), Quadratic(6, 3))
    for net in (Reads(), norm, Moves(), Looks()):
        model = randomise_private(sp.superpose(net, tasks=4))
        run = torch.compile(model.run, fullgraph=True, backend="aot_eager")
        for task in (1, 2):
            torch.testing.assert_close(run(model.selection(task), x), model(x, task=task))
        compiled = torch.compile(model, backend="aot_eager")
        with torch.no_grad():
            each = rows_one_by_one(model, TASKS, x)
            torch.testing.assert_close(compiled(x, task=TASKS), each)
    with torch.no_grad():  # the last is direct
        torch.testing.assert_close(run(model.selection(TASKS), x), each)


def test_a_weight_can_be_set_while_a_task_is_chosen():
    model = sp.superpose(Looks(), tasks=2)
    with model.task(1), torch.no_grad():
        model.inner.weight.zero_()
    assert model.inner.weight.abs().max() == 0
    model.inner.weight = nn.Parameter(torch.ones(6, 7))
    assert torch.equal(model.state_dict()["inner.weight"], torch.ones(6, 7))


def test_a_layer_that_is_only_read_has_no_mean_and_is_not_told_as_centred():
    """Its inputs are never seen; that is known once the other layers have seen theirs."""
    model = sp.superpose(Reads(), tasks=3, centre="task")
    assert "inner.weight" in model.summary().centred
    model.eval()(torch.randn(5, 7), task=1)
    assert "inner.weight" in model.summary().centred
    model.train()(torch.randn(5, 7), task=1)
    assert model.summary().centred == ["called.weight"]
    by_rows = sp.superpose(Reads(), tasks=3, centre="rows")
    by_rows(torch.randn(5, 7), task=1)
    assert by_rows.summary().centred == ["inner.weight", "kernel.weight", "called.weight"]
