"""Subclasses of PyTorch's layers, and layers customised from outside."""

import contextlib
import copy
import pickle

import pytest
import torch
from checks import TASKS, first, randomise_private
from customised import IMAGE_NETWORKS, wrapped
from networks import First
from torch import nn
from torch.nn.utils import parametrizations, prune

import superpose as sp


class Gained(nn.Linear):
    """A subclass that computes what its parent does, and knows something more."""

    unit = 2.0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.offset = 1.0

    @property
    def gain(self):
        return self.weight.norm() * self.unit + self.offset

    def extra_repr(self):
        return f"{super().extra_repr()}, unit={self.unit}"


class Doubled(nn.MultiheadAttention):
    def forward(self, *inputs, **options):
        y, weights = super().forward(*inputs, **options)
        return 2 * y, weights


class Named:
    """What a subclass may add beside its parent."""

    def told(self):
        return type(self).__name__


class OwnLinear(Named, nn.Linear):
    pass


class OwnConv2d(Named, nn.Conv2d):
    pass


class OwnUp(Named, nn.ConvTranspose1d):
    pass


class OwnGRU(Named, nn.GRU):
    pass


class OwnNorm(Named, nn.LayerNorm):
    pass


class OwnTable(Named, nn.Embedding):
    pass


def frozen():
    """PyTorch cannot copy a layer whose weight has been computed from one that is trained."""
    return nn.Linear(6, 6).requires_grad_(False)


CUSTOMISED = {
    "forward of the instance": lambda: wrapped(nn.Linear(6, 6)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(6, 6)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(6, 6)),
    "spectral norm by a hook": lambda: nn.utils.spectral_norm(frozen()),
    "pruned": lambda: prune.l1_unstructured(frozen(), "weight", 0.5),
    "a wrapped norm": lambda: wrapped(nn.LayerNorm(6)),
}


@pytest.mark.parametrize("name", CUSTOMISED)
def test_layers_that_were_customised_are_left_alone_and_told_to_be_shared(name):
    torch.manual_seed(0)
    custom = CUSTOMISED[name]().eval()
    net = nn.Sequential(custom, nn.ReLU(), nn.Linear(6, 4))
    warns = name != "a wrapped norm"
    with pytest.warns(match="^0 stay shared") if warns else contextlib.nullcontext():
        model = sp.superpose(net, tasks=3, bind_frozen=True)
    sp.superpose(net, tasks=3, skip=["0"])  # says nothing
    shared = {tensor for tensor in net.state_dict() if tensor.startswith("0.")}
    assert shared <= set(model.summary().shared)
    assert model.summary().superposed == ["2.weight"]
    x = torch.randn(5, 6)
    torch.testing.assert_close(model[0](x), custom(x))
    torch.testing.assert_close(sp.unsuperpose(model, 1)(x), model(x, task=1))
    assert (model(x, task=1) - model(x, task=2)).abs().max() > 1e-2
    with pytest.raises(sp.SuperposeError, match=r"has no layer to superpose.*customised"):
        sp.superpose(nn.Sequential(custom))


def test_attention_that_was_customised_is_left_alone_with_its_projection():
    torch.manual_seed(0)
    attention = Doubled(8, 2, batch_first=True)
    net = nn.Sequential(First(nn.GRU(8, 8, batch_first=True)), attention)
    with pytest.warns(match="^1 stay shared"):
        model = sp.superpose(net, tasks=3, private="shared")
    assert not any(tensor.startswith("1.") for tensor in model.summary().superposed)
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(model[1](x, x, x), attention(x, x, x))


def test_a_forward_set_on_the_model_itself_is_an_error():
    with pytest.raises(sp.SuperposeError, match="Sequential has a forward set on it"):
        sp.superpose(wrapped(nn.Sequential(nn.Linear(6, 4))))
    inside = nn.Sequential(wrapped(nn.Sequential(nn.Linear(6, 4))))
    model, x = sp.superpose(inside, tasks=3), torch.randn(5, 6)
    torch.testing.assert_close(model(x, task=2), 3 * sp.unsuperpose(model, 2)[0][0](x))
    assert (model(x, task=1) - model(x, task=2)).abs().max() > 1e-2


def test_a_subclass_keeps_what_it_adds():
    torch.manual_seed(0)
    net = nn.Sequential(Gained(6, 4), nn.ReLU(), Gained(4, 3))
    model = sp.superpose(net, tasks=3)
    assert model.summary().superposed == ["0.weight", "2.weight"]
    assert isinstance(model[0], Gained)
    torch.testing.assert_close(model[0].gain, net[0].gain)
    model[0].unit = 4.0
    assert "unit=4.0" in repr(model[0])
    assert net[0].unit == 2.0
    x = torch.randn(5, 6)
    torch.testing.assert_close(sp.unsuperpose(model, 1)(x), model(x, task=1))
    assert type(sp.unsuperpose(model)[0]) is Gained
    whole = sp.superpose(Gained(6, 4), tasks=3)
    torch.testing.assert_close(whole.gain, sp.unsuperpose(whole).gain)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (OwnLinear(6, 4), torch.randn(5, 6)),
        (OwnConv2d(3, 4, 3), torch.randn(5, 3, 6, 6)),
        (OwnUp(3, 4, 3), torch.randn(5, 3, 6)),
        (OwnGRU(6, 4, batch_first=True), torch.randn(5, 3, 6)),
        (nn.LSTM(6, 4, batch_first=True), torch.randn(5, 3, 6)),
        (nn.Sequential(nn.Linear(6, 6), OwnNorm(6)), torch.randn(5, 6)),
        (nn.Sequential(OwnTable(7, 3), nn.Flatten(), nn.Linear(9, 4)), torch.randint(7, (5, 3))),
    ],
    ids=lambda value: "" if isinstance(value, torch.Tensor) else type(value).__name__,
)
@pytest.mark.parametrize("inside", [False, True])
def test_every_subclass_is_copied_and_pickled(layer, x, inside):
    net = nn.Sequential(layer) if inside else layer
    tables = [name for name, module in net.named_modules() if isinstance(module, nn.Embedding)]
    rows = {"batch_dim": {"return": [0, *[1] * (2 if isinstance(layer, nn.LSTM) else 1)]}}
    rows = rows if isinstance(layer, nn.RNNBase) else {}
    model = randomise_private(sp.superpose(net, tasks=4, private_layers=tables, **rows)).eval()
    expected = first(model(x, task=TASKS))
    assert (expected - first(model(x, task=1))).abs().max() > 1e-3
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(first(other(x, task=TASKS)), expected)
        for mine, plain in zip(_named(other), _named(net), strict=True):
            assert isinstance(mine, type(plain))
            assert isinstance(mine, sp.nn.Layer)
            assert mine.told().endswith(plain.told())
        assert [type(m) for m in _named(sp.unsuperpose(other))] == [type(m) for m in _named(net)]


def _named(net):
    return [module for module in net.modules() if isinstance(module, Named)]


@pytest.mark.parametrize("taken", ["private", "bound", "has_base"])
def test_a_subclass_that_has_a_name_of_ours_is_an_error(taken):
    net = nn.Sequential(nn.Conv2d(3, 4, 3))
    setattr(net[0], taken, "mine")
    with pytest.raises(sp.SuperposeError, match=f"Conv2d '0' already has '{taken}'"):
        sp.superpose(net)
    assert sp.superpose(nn.Sequential(*net, nn.Conv2d(4, 3, 1)), skip=["0"])[0] is not net[0]


def test_a_module_that_has_a_name_of_ours_is_told_to_be_shared():
    class Relational(nn.Module):
        def __init__(self):
            super().__init__()
            self.bases = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return x @ self.bases

    sp.nn.register(Relational, {})
    net = nn.Sequential(nn.Linear(4, 4), Relational())
    assert sp.superpose(net).summary().shared == ["1.bases"]
    with pytest.raises(sp.SuperposeError, match="Relational '1' already has 'bases'"):
        sp.superpose(net, private_layers=["1"])
    assert sp.superpose(net, skip=["1"]).summary().shared == ["1.bases"]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_image_networks_with_norms_of_their_own_are_right_in_the_direct_way(name, training):
    torch.manual_seed(0)
    model = sp.superpose(IMAGE_NETWORKS[name](width=8).double(), "hadamard", tasks=4)
    x = torch.randn(5, 3, 16, 16, dtype=torch.float64)
    checked = sp.check_mixed(model.train(training), x, tasks=[0, 1, 0, 2, 1], rounds=1)
    assert checked.right == ["grouped", "direct"], str(checked)
    assert not checked.notes
