"""Layers: called as PyTorch's are, by themselves, and as the matrix does not call them."""

import copy
import pickle

import pytest
import torch
from cases import real_family
from checks import TASKS, assert_close, first, gradients, rows_one_by_one, scramble
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import LAYERS
from torch import nn

import superpose as sp


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
        (nn.GRU(6, 4, batch_first=True), (3, 6), {}),
        (nn.BatchNorm2d(3), (3, 4, 4), {}),
        (nn.GroupNorm(3, 3), (3, 4, 4), {}),
        (nn.InstanceNorm1d(3, affine=True), (3, 4), {}),
        (nn.LayerNorm(6), (3, 6), {}),
        (nn.PReLU(), (3, 6), {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_arguments_have_the_names_that_pytorch_gives_them(layer, shape, options):
    torch.manual_seed(0)
    net, x = ByName(layer, **options).eval(), torch.randn(5, *shape)
    for base in (False, True):
        model = sp.superpose(net, "identity", tasks=4, base=base).eval()
        plain = copy.deepcopy(net).requires_grad_(
            not base
        )  # PyTorch has kernels for what is frozen
        assert torch.equal(model(x, task=1), plain(x))
        model = scramble(sp.superpose(net, tasks=4, base=base)).eval()
        for way in ("grouped", "direct"):
            model.mixed = way
            each = rows_one_by_one(model, TASKS, x)
            torch.testing.assert_close(model(x, task=TASKS), each)


STANDALONE = [
    (lambda: sp.nn.Linear(6, 4, family="phase"), (6,)),
    (lambda: sp.nn.Conv2d(3, 4, 3, family="hadamard"), (3, 5, 5)),
    (lambda: sp.nn.Conv2d(4, 4, 3, groups=2, conv="channel"), (4, 5, 5)),
    (lambda: sp.nn.ConvTranspose1d(3, 4, 3), (3, 5)),
    (lambda: sp.nn.LSTM(6, 4, batch_first=True), (2, 6)),
]


@pytest.mark.parametrize(("make", "shape"), STANDALONE)
def test_layers_by_themselves_take_a_task(make, shape):
    torch.manual_seed(0)
    layer, x = make(), torch.randn(3, *shape)
    for other in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        mixed = first(other(x, task=torch.tensor([0, 5, 0])))
        for row, task in enumerate([0, 5, 0]):
            alone = first(layer(x[row : row + 1], task=task))
            torch.testing.assert_close(mixed[row : row + 1], alone)
        assert (first(layer(x[:1], task=5)) - mixed[:1]).abs().max() > 1e-3
    for task in (1.5, True, "a", [0.5, 1, 2], [[0, 1, 2]], []):
        with pytest.raises(sp.SuperposeError, match=r"task=.*: give one whole number"):
            layer(x, task=task)
    named = sp.nn.Linear(6, 4, layer="encoder.fc", seed=3)
    read = sp.superpose(nn.ModuleDict({"encoder": nn.ModuleDict({"fc": nn.Linear(6, 4)})}), seed=3)
    found = read["encoder"]["fc"].bound["weight"].context
    assert named.bound["weight"].context == found  # the key is that of the layer in a network


def test_attention_by_itself_takes_a_task():
    torch.manual_seed(0)
    layer, x = sp.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 4, 8)
    mixed = layer(x, x, x, task=[0, 5, 0])[0]
    one = x[1:2]
    torch.testing.assert_close(mixed[1:2], layer(one, one, one, task=5)[0])
    assert (mixed[1:2] - layer(one, one, one, task=0)[0]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("Linear", (8, 3)), ("Conv2d", (8, 3, 1)), ("GRU", (8, 3))],
)
def test_layers_by_themselves_have_nothing_to_learn_a_context_with(name, arguments):
    layer, phase = getattr(sp.nn, name), sp.contexts.Phase(learnable=True)
    with pytest.raises(sp.SuperposeError, match=r"Phase\(learnable=True\) is learned for each"):
        layer(*arguments, family=phase)


@pytest.mark.parametrize("family", ["binary", "phase", "hadamard", "permutation", "rotation"])
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv2d groups", "conv3d"])
def test_a_bound_kernel_is_a_convolution_of_bound_patches(name, family):
    """Law 2 for convolutions: C(k) acts on every patch (channel, position) that a kernel meets."""
    torch.manual_seed(0)
    net, _ = LAYERS[name]()
    model = sp.superpose(net.double(), family, tasks=3)
    kernel, groups = sp.unsuperpose(model, 1).weight, net.groups
    for group in range(groups):
        layer = "weight" if groups == 1 else f"weight:{group}"
        patch = net.weight[0].numel()
        key = sp.contexts.Key(model.superposition.seed, layer, 1)
        context = model.superposition.family.context(key, patch)
        rows = slice(group * len(net.weight) // groups, (group + 1) * len(net.weight) // groups)
        dense = context.bind(torch.eye(patch, dtype=torch.float64)).T
        torch.testing.assert_close(kernel[rows].flatten(1), net.weight[rows].flatten(1) @ dense)


def test_channel_mode_binds_channels():
    torch.manual_seed(0)
    net, x = nn.Conv2d(4, 6, 3), torch.randn(5, 4, 7, 7)
    model = sp.superpose(net, tasks=5, conv="channel", private="shared")
    signs = sp.contexts.Binary().context(sp.contexts.Key(0, "weight", 3), 4).signs
    torch.testing.assert_close(model(x, task=3), net(x * signs.view(4, 1, 1)))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_convolutions_of_any_shape(data):
    """Rows of many tasks, bound by kernel, by patches, or by channel, beside the rows alone."""
    draw = data.draw
    dims = draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2]))
    pair = st.tuples(*[st.integers(1, 3)] * dims)
    kernel, dilation, padding = draw(pair), draw(pair), draw(st.integers(0, 2))
    mode = draw(st.sampled_from(["zeros", "circular", "reflect"]))
    made = (nn.Conv1d, nn.Conv2d)[dims - 1](
        2 * groups, draw(st.sampled_from([2, 40])) * groups, kernel, draw(st.integers(1, 2)),
        padding, dilation, groups, draw(st.booleans()), mode,
    )  # fmt: skip
    conv, base = draw(st.sampled_from(["kernel", "channel"])), draw(st.booleans())
    torch.manual_seed(0)
    family = draw(st.sampled_from(["binary", "hadamard", "permutation"]))
    model = scramble(sp.superpose(made.double(), family, tasks=4, conv=conv, base=base)).eval()
    x = torch.randn(5, 2 * groups, *[7, 8][:dims], dtype=torch.float64)
    assert model.mixed == "direct"
    mixed, each = model(x, task=TASKS), rows_one_by_one(model, TASKS, x)
    torch.testing.assert_close(mixed, each)
    assert_close(gradients(model, mixed), gradients(model, each))
    torch.testing.assert_close(sp.unsuperpose(model, 2)(x), model(x, task=2))


@real_family
@pytest.mark.parametrize("name", ["conv2d groups", "linear over tokens", "lstm", "attention"])
def test_every_family_in_every_sort_of_layer(name, family):
    torch.manual_seed(0)
    net, shape = LAYERS[name]()
    model = scramble(sp.superpose(net.double(), family, tasks=4)).eval()
    x = torch.randn(5, *shape, dtype=torch.float64)
    each = rows_one_by_one(model, TASKS, x)
    for way in ("grouped", "direct"):
        model.mixed = way
        torch.testing.assert_close(model(x, task=TASKS), each)
    torch.testing.assert_close(sp.unsuperpose(model, 3)(x), model(x, task=3))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("way", ["grouped", "direct"])
def test_rows_start_from_the_states_that_they_are_given(kind, way):
    torch.manual_seed(0)
    net = kind(6, 4, 2, batch_first=True, bidirectional=True).double()
    model = scramble(sp.superpose(net, tasks=4, mixed=way))
    x, states = torch.randn(5, 3, 6).double(), torch.randn(2, 4, 5, 4).double()

    def started(rows):
        parts = tuple(states[:, :, rows].contiguous())
        return parts if kind is nn.LSTM else parts[0]

    mixed, last = model(x, started(slice(None)), task=TASKS)
    for i, task in enumerate(TASKS.tolist()):
        row = slice(i, i + 1)
        alone, state = model(x[row], started(row), task=task)
        torch.testing.assert_close(mixed[row], alone)
        torch.testing.assert_close(first(last)[:, row], first(state))


@pytest.mark.parametrize("way", ["grouped", "direct"])
def test_cells_take_states(way):
    torch.manual_seed(0)
    model = scramble(sp.superpose(nn.LSTMCell(7, 6), tasks=4, mixed=way))
    x, (h, c) = torch.randn(5, 7), torch.randn(2, 5, 6)
    mixed = model(x, (h, c), task=TASKS)
    for row, task in enumerate(TASKS):
        own = slice(row, row + 1)
        alone = model(x[own], (h[own], c[own]), task=task)
        torch.testing.assert_close((mixed[0][own], mixed[1][own]), alone)
    gru = scramble(sp.superpose(nn.GRUCell(7, 6), tasks=4, mixed=way))
    mixed = gru(x, hx=h, task=TASKS)
    alone = gru(x[:1], hx=h[:1], task=2)
    torch.testing.assert_close(mixed[:1], alone)


def test_rows_that_cannot_be_told_apart_are_refused():
    tasks = [0, 1, 0]
    with pytest.raises(sp.SuperposeError, match=r"there are 3 tasks, .*\(1, 2, 6\)"):
        sp.superpose(nn.Linear(6, 4), mixed="grouped")(torch.randn(1, 2, 6), task=tasks)
    with pytest.raises(sp.SuperposeError, match=r"there are 3 tasks, .*\(1, 2, 6\)"):
        sp.superpose(nn.Linear(6, 4))(torch.randn(1, 2, 6), task=tasks)
    for rows in (1, 4):
        with pytest.raises(sp.SuperposeError, match=rf"is given \({rows}, 3, 5, 5\), in which"):
            sp.nn.Conv2d(3, 4, 3)(torch.randn(rows, 3, 5, 5), task=tasks)
    with pytest.raises(sp.SuperposeError, match=r"is given \(3, 5, 5\), in which .* the 3 rows"):
        sp.nn.Conv2d(3, 4, 3)(torch.randn(3, 5, 5), task=tasks)  # channels are no rows
    alone = torch.randn(3, 6)
    attention = sp.superpose(nn.MultiheadAttention(6, 2), mixed="direct")
    with pytest.raises(
        sp.SuperposeError, match=r"there are 3 tasks, .*\'query\' has the shape \(3, 6\)"
    ):
        attention(alone, alone, alone, task=tasks)
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 6), torch.randn(2, 6)])
    model = sp.superpose(nn.LSTM(6, 4))
    assert model(packed, task=1)[0].data.shape == (6, 4)
    with pytest.raises(sp.SuperposeError, match="there are 2 tasks"):
        model(packed, task=[0, 1])
    model.mixed = "direct"
    with pytest.raises(sp.SuperposeError, match="there are 2 tasks"):
        model(packed, task=[0, 1])


@pytest.mark.parametrize("batch_first", [True, False])
def test_sequence_modules_of_pytorch_know_where_their_rows_are(batch_first):
    """As many tokens as rows: a guess could be wrong."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    x, dim = torch.randn(5, 5, 8), 0 if batch_first else 1
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    for net in (encoder, layer, nn.GRU(8, 4, batch_first=batch_first)):
        model = scramble(sp.superpose(net, tasks=4)).eval()
        each = [
            first(model(x.select(dim, i).unsqueeze(dim), task=int(t))) for i, t in enumerate(TASKS)
        ]
        for way in ("grouped", "direct"):
            model.mixed = way
            torch.testing.assert_close(first(model(x, task=TASKS)), torch.cat(each, dim))


@pytest.mark.parametrize("way", ["grouped", "direct"])
def test_rows_may_be_second(way):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.outer(self.inner(x).mean(0))

    where = {"batch_dim": {"x": 1, "return": 0}} if way == "grouped" else {"batch_dim": 1}
    model = scramble(sp.superpose(Pooled(), tasks=4, mixed=way, **where))
    x = torch.randn(5, 3, 6)  # (tokens, rows, features), and 3 features for 3 rows in the end
    each = [model(x[:, i : i + 1], task=task) for i, task in enumerate((2, 0, 1))]
    if way == "grouped":
        torch.testing.assert_close(model(x, task=[2, 0, 1]), torch.cat(each))
    else:
        view = model.view([2, 0, 1])
        torch.testing.assert_close(model.run(view, x), torch.cat(each))


@pytest.mark.parametrize("way", ["grouped", "direct"])
@pytest.mark.parametrize("make", [lambda p: nn.LSTM(8, 8, 2, batch_first=True, dropout=p)])
def test_rows_of_many_tasks_are_dropped_out_while_training_only(make, way):
    torch.manual_seed(0)
    model, x = sp.superpose(make(0.5), tasks=4, mixed=way), torch.randn(5, 3, 8)
    assert (model(x, task=TASKS)[0] - model(x, task=TASKS)[0]).abs().max() > 1e-3
    model.eval()
    one = torch.cat([model(x[i : i + 1], task=int(t))[0] for i, t in enumerate(TASKS)])
    torch.testing.assert_close(model(x, task=TASKS)[0], one)
    last = sp.superpose(make(1.0), tasks=4, mixed=way)
    assert last(x, task=TASKS)[0].abs().max() > 0, "the last layer's output is not dropped out"
