"""Layers: rows of many tasks, read-out, and options, for every kind of layer."""

import copy
import inspect

import pytest
import torch
from cases import real_family
from checks import TASKS, first, gradients, randomise_private, rows_one_by_one
from networks import LAYERS, build
from torch import nn

import superpose as sp
from superpose.nn import forms


@real_family
@pytest.mark.parametrize("name", LAYERS)
def test_rows_and_read_out(name, family):
    model, x = build(name, family, batch_dim=0)
    mixed = model(x, task=TASKS)
    torch.testing.assert_close(mixed, rows_one_by_one(model, TASKS, x))
    others = model(x, task=(TASKS + 1) % 4)
    if family != "identity" or model.summary().private:
        assert (mixed - others).abs().max() > 1e-3
    if family != "identity":  # the contexts alone make tasks differ
        torch.manual_seed(0)
        shared = sp.superpose(LAYERS[name]()[0].double(), family, tasks=4, private="shared").eval()
        assert (shared(x, task=1) - shared(x, task=2)).abs().max() > 1e-4
    plain = sp.unsuperpose(model, 2)
    torch.testing.assert_close(plain(x), model(x, task=2))
    for weight, gradient in gradients(model, mixed).items():
        one_by_one = gradients(model, rows_one_by_one(model, TASKS, x))[weight]
        torch.testing.assert_close(gradient, one_by_one)


@pytest.mark.parametrize("name", LAYERS)
def test_private_layers_of_every_kind(name):
    """A task's own weights are the ones that run, alone and by row, and that learn."""
    torch.manual_seed(0)
    net, shape = LAYERS[name]()
    beside = nn.Sequential(nn.Linear(shape[-1], shape[-1]), net).double()
    model = sp.superpose(beside, tasks=4, private_layers=["1"], batch_dim=0)
    model = randomise_private(model).eval()
    x = torch.randn(len(TASKS), *shape, dtype=torch.float64)
    plain, one = sp.unsuperpose(model, 2), model(x, task=2)
    torch.testing.assert_close(one, plain(x))
    assert (one - model(x, task=1)).abs().max() > 1e-3
    alone, found = gradients(plain, plain(x)), gradients(model, one)
    assert {name.partition(" of ")[0] for name in found} == set(alone)
    for tensor, gradient in found.items():
        name, _, task = tensor.partition(" of ")
        if task:
            assert task == "2"
            torch.testing.assert_close(gradient, alone[name])
    tasks = TASKS % 3  # nobody asks for the last one
    mixed, each = model(x, task=tasks), rows_one_by_one(model, tasks, x)
    torch.testing.assert_close(mixed, each)
    found, expected = gradients(model, mixed), gradients(model, each)
    assert found.keys() == expected.keys()
    assert {n[-1] for n in found if " of " in n} == {"0", "1", "2"}
    for tensor, gradient in found.items():
        torch.testing.assert_close(gradient, expected[tensor])


@pytest.mark.parametrize("private", ["per-task", "shared", "none"])
@pytest.mark.parametrize("name", ["attention", "lstm", "conv2d", "norms"])
def test_private_modes_of_every_layer(name, private):
    model, x = build(name, "binary", private=private)
    assert model(x, task=1).shape == model(x, task=TASKS).shape if name != "norms" else True
    assert bool(model.private_tensors(1)) == (private == "per-task")
    if private == "none":
        assert all("weight" in key for key in model.state_dict())


def test_standalone_layers_take_a_task():
    torch.manual_seed(0)
    layers = [
        (sp.nn.Linear(6, 4, family="phase"), torch.randn(3, 6)),
        (sp.nn.Conv2d(3, 4, 3, family="hadamard"), torch.randn(3, 3, 5, 5)),
        (sp.nn.ConvTranspose1d(3, 4, 3), torch.randn(3, 3, 5)),
        (sp.nn.LSTM(6, 4, batch_first=True), torch.randn(3, 2, 6)),
    ]
    for layer, x in layers:
        out = layer(x, task=[0, 5, 0])
        one = layer(x, task=5)
        out, one = (o[0] if isinstance(o, tuple) else o for o in (out, one))
        torch.testing.assert_close(out[1], one[1])
        assert (out[0] - one[0]).abs().max() > 1e-3
    for task in (1.5, True, "a", [0.5, 1, 2], [[0, 1, 2]], []):
        with pytest.raises(sp.SuperposeError, match=r"task=.*: give one whole number"):
            layers[0][0](torch.randn(3, 6), task=task)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("LayerNorm", (8,)),
        ("RMSNorm", (8,)),
        ("GroupNorm", (2, 8)),
        ("BatchNorm2d", (8,)),
        ("InstanceNorm1d", (8,)),
        ("Embedding", (8, 3)),
    ],
)
def test_layers_with_tensors_for_each_task_need_a_model(name, arguments):
    with pytest.raises(sp.SuperposeError, match=f"{name} has tensors .* nn.{name} in it"):
        getattr(sp.nn, name)(*arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Linear", (8, 3)),
        ("Conv2d", (8, 3, 1)),
        ("GRU", (8, 3)),
        ("MultiheadAttention", (8, 2)),
        ("ComplexLinear", (8, 3)),
    ],
)
def test_layers_by_themselves_have_nothing_to_learn_a_context_with(name, arguments):
    layer = getattr(sp.nn, name)
    layer(*arguments, family=sp.contexts.Phase())
    with pytest.raises(
        sp.SuperposeError, match=r"Phase\(learnable=True\) is learned for each task"
    ):
        layer(*arguments, family=sp.contexts.Phase(learnable=True))


class ByName(nn.Module):
    """Calls a layer with the names of its arguments."""

    def __init__(self, layer, **options):
        super().__init__()
        self.layer, self.options = layer, options
        self.other = nn.Linear(2, 2)  # so that there is something to superpose

    def forward(self, x):
        return first(self.layer(input=x, **self.options))


@pytest.mark.parametrize(
    ("layer", "shape", "options"),
    [
        (nn.Linear(6, 4), (6,), {}),
        (nn.Conv1d(3, 4, 3), (3, 6), {}),
        (nn.ConvTranspose2d(3, 4, 3, stride=2), (3, 4, 4), {"output_size": [10, 10]}),
        (nn.GRU(6, 4, batch_first=True), (3, 6), {"hx": torch.zeros(1, 5, 4)}),
        (nn.BatchNorm2d(3), (3, 4, 4), {}),
        (nn.GroupNorm(3, 3), (3, 4, 4), {}),
        (nn.InstanceNorm1d(3, affine=True), (3, 4), {}),
        (nn.LayerNorm(6), (3, 6), {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_arguments_have_the_names_that_pytorch_gives_them(layer, shape, options):
    torch.manual_seed(0)
    net = ByName(layer, **options).eval()
    x = torch.randn(5, *shape)
    assert torch.equal(sp.superpose(net, "identity", tasks=2)(x, task=1), net(x))
    if isinstance(layer, nn.Linear | nn.ConvTranspose2d):  # the same beside a base
        packed = sp.pack({"a": net}, method="delta", base=copy.deepcopy(net))
        torch.testing.assert_close(packed(x, task="a"), net(x))
    if isinstance(layer, nn.Linear | nn.Conv1d):
        alone = sp.pack({"a": net}, calibration={"a": x}, private_layers=["other"])
        torch.testing.assert_close(alone(x, task="a"), net(x), rtol=1e-3, atol=1e-3)


def test_every_layer_is_called_as_pytorchs_is():
    layers = {p: kind for p, kind in forms.PYTORCH.items() if isinstance(kind, type)}
    assert len(layers) > 20
    for plain, kind in layers.items():
        own = [name for name in inspect.signature(kind.forward).parameters if name != "task"]
        assert own == list(inspect.signature(plain.forward).parameters), kind


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 4), (5, 6)),
        (nn.Conv1d(6, 4, 1), (5, 6, 3)),
        (nn.LayerNorm(6), (5, 6)),
        (nn.GroupNorm(2, 6), (5, 6)),
        (nn.BatchNorm1d(6), (5, 6)),
        (nn.InstanceNorm1d(6, affine=True), (5, 6, 3)),
        (nn.PReLU(), (5, 6)),
        (nn.GRU(6, 4, batch_first=True), (5, 3, 6)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_are_called_by_keyword_as_plain_ones_are(layer, shape):
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.layer = nn.Linear(shape[-1], shape[-1]), layer

        def forward(self, x):
            y = self.layer(input=self.first(input=x))
            return y[0] if isinstance(y, tuple) else y

    torch.manual_seed(0)
    model, x = sp.superpose(Calls(), tasks=3).eval(), torch.randn(shape)
    tasks = [0, 1, 2, 1, 0]
    for way in ("grouped", "direct"):
        model.mixed = way
        each = [model(x[[row]], task=task) for row, task in enumerate(tasks)]
        torch.testing.assert_close(model(x, task=tasks), torch.cat(each))
