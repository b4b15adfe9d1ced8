"""Layers: rows of many tasks, read-out, and options, for every kind of layer."""

import contextlib
import copy
import functools
import inspect
import pickle

import cases
import pytest
import torch
import torch.nn.functional as F
from test_model import randomise_private, rows_one_by_one
from torch import nn
from torch.nn.utils import parametrizations, prune

import superpose as sp
from superpose import functional
from superpose.nn import forms
from superpose.nn.complex import complexify

REAL = [name for name in cases.NAMES if name not in ("complex", "onepower")]
real_family = pytest.mark.parametrize("family", REAL)
TASKS = torch.tensor([2, 0, 1, 2, 3])


class First(nn.Module):
    """The first output of a module that gives several."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)[0]


class SelfAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class CrossAttention(SelfAttention):
    """Queries, keys and values differ; in their sizes too, if options say so."""

    def forward(self, x):
        key, value = x.flip(1)[..., : self.attention.kdim], x[..., : self.attention.vdim]
        return self.attention(x, key, value, need_weights=False)[0]


def encoder(**options):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS = {
    "conv1d": lambda: (nn.Conv1d(4, 6, 3, padding=1), (4, 9)),
    "conv2d": lambda: (nn.Conv2d(4, 6, 3, stride=2, padding="valid"), (4, 7, 7)),
    "conv2d circular": lambda: (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (4, 7, 7)),
    "conv2d groups": lambda: (nn.Conv2d(4, 6, 3, groups=2, dilation=2), (4, 7, 7)),
    "conv2d depthwise": lambda: (nn.Conv2d(4, 4, 3, groups=4, bias=False), (4, 7, 7)),
    "conv3d": lambda: (nn.Conv3d(2, 3, 2), (2, 4, 4, 4)),
    "transposed 1d": lambda: (nn.ConvTranspose1d(4, 6, 3, stride=2), (4, 5)),
    "transposed 2d": lambda: (nn.ConvTranspose2d(4, 6, 3, 2, output_padding=1), (4, 5, 5)),
    "transposed groups": lambda: (nn.ConvTranspose2d(4, 6, 3, groups=2), (4, 5, 5)),
    "transposed 3d": lambda: (nn.ConvTranspose3d(2, 3, 2), (2, 3, 3, 3)),
    "linear over tokens": lambda: (nn.Linear(6, 4), (3, 6)),
    "attention": lambda: (SelfAttention(), (3, 8)),
    "attention cross": lambda: (CrossAttention(), (3, 8)),
    "attention sizes": lambda: (CrossAttention(kdim=6, vdim=5), (3, 8)),
    "attention extras": lambda: (SelfAttention(add_bias_kv=True, add_zero_attn=True), (3, 8)),
    "encoder": lambda: (encoder(batch_first=True), (3, 8)),
    "encoder norm first": lambda: (encoder(batch_first=True, norm_first=True), (5, 8)),
    "rnn": lambda: (First(nn.RNN(6, 8, nonlinearity="relu", batch_first=True)), (3, 6)),
    "gru": lambda: (First(nn.GRU(6, 8, 2, batch_first=True, bidirectional=True)), (3, 6)),
    "lstm": lambda: (First(nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)), (3, 6)),
    "lstm projected": lambda: (First(nn.LSTM(6, 8, proj_size=4, batch_first=True)), (4, 6)),
    "lstm no bias": lambda: (First(nn.LSTM(6, 8, bias=False, batch_first=True)), (4, 6)),
    "norms": lambda: (
        nn.Sequential(
            nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.GroupNorm(2, 6),
            nn.InstanceNorm2d(6, affine=True),
        ),
        (4, 5, 5),
    ),
    "tracking norms": lambda: (
        nn.Sequential(
            nn.Conv1d(4, 6, 1), nn.SyncBatchNorm(6),
            nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
        ),
        (4, 7),
    ),
    "last norms": lambda: (
        nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.RMSNorm(6), nn.LayerNorm((3, 6))),
        (3, 6),
    ),
}  # fmt: skip


def build(name, family="binary", **options):
    torch.manual_seed(0)
    net, shape = MODELS[name]()
    model = randomise_private(sp.superpose(net.double(), family, tasks=4, **options)).eval()
    return model, torch.randn(len(TASKS), *shape, dtype=torch.float64)


@real_family
@pytest.mark.parametrize("name", MODELS)
def test_rows_and_read_out(name, family):
    model, x = build(name, family, batch_dim=0)
    mixed = model(x, task=TASKS)
    torch.testing.assert_close(mixed, rows_one_by_one(model, TASKS, x))
    others = model(x, task=(TASKS + 1) % 4)
    if family != "identity" or model.summary().private:
        assert (mixed - others).abs().max() > 1e-3
    if family != "identity":  # the contexts alone make tasks differ
        torch.manual_seed(0)
        shared = sp.superpose(MODELS[name]()[0].double(), family, tasks=4, private="shared").eval()
        assert (shared(x, task=1) - shared(x, task=2)).abs().max() > 1e-4
    plain = sp.unsuperpose(model, 2)
    torch.testing.assert_close(plain(x), model(x, task=2))
    for weight, gradient in _gradients(model, mixed).items():
        one_by_one = _gradients(model, rows_one_by_one(model, TASKS, x))[weight]
        torch.testing.assert_close(gradient, one_by_one)


def _gradients(model, output):
    model.zero_grad()
    output.square().sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_private_layers_of_every_kind(name):
    """A task's own weights are the ones that run, alone and by row, and that learn."""
    torch.manual_seed(0)
    net, shape = MODELS[name]()
    beside = nn.Sequential(nn.Linear(shape[-1], shape[-1]), net).double()
    model = sp.superpose(beside, tasks=4, private_layers=["1"], batch_dim=0)
    model = randomise_private(model).eval()
    x = torch.randn(len(TASKS), *shape, dtype=torch.float64)
    plain, one = sp.unsuperpose(model, 2), model(x, task=2)
    torch.testing.assert_close(one, plain(x))
    assert (one - model(x, task=1)).abs().max() > 1e-3
    alone, found = _gradients(plain, plain(x)), _gradients(model, one)
    assert {plain_names(n) for n in found} == set(alone)
    for tensor, gradient in found.items():
        if "private" in tensor:
            assert tensor.endswith(".2")
            torch.testing.assert_close(gradient, alone[plain_names(tensor)])
    tasks = TASKS % 3  # nobody asks for the last one
    mixed, each = model(x, task=tasks), rows_one_by_one(model, tasks, x)
    torch.testing.assert_close(mixed, each)
    found, expected = _gradients(model, mixed), _gradients(model, each)
    assert found.keys() == expected.keys()
    assert {n[-1] for n in found if "private" in n} == {"0", "1", "2"}
    for tensor, gradient in found.items():
        torch.testing.assert_close(gradient, expected[tensor])


def plain_names(tensor):
    """`1.private.weight.2` is what task 2 has for the plain model's `1.weight`."""
    before, private, after = tensor.rpartition("private.")
    return before + after.partition(".")[0] if private else tensor


@pytest.mark.parametrize("family", ["binary", "phase", "hadamard", "permutation", "rotation"])
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv2d groups", "conv3d"])
def test_a_bound_kernel_is_a_convolution_of_bound_patches(name, family):
    """Law 2 for convolutions: C(k) acts on every patch (channel, position) that a kernel meets."""
    torch.manual_seed(0)
    net, _ = MODELS[name]()
    model = sp.superpose(net.double(), family, tasks=3)
    kernel = sp.unsuperpose(model, 1).weight
    groups = net.groups
    bound = model.superposition
    for group in range(groups):
        layer = "weight" if groups == 1 else f"weight:{group}"
        key = sp.contexts.Key(bound.seed, layer, 1)
        patch = net.weight[0].numel()
        context = bound.family.context(key, patch)
        rows = slice(group * len(net.weight) // groups, (group + 1) * len(net.weight) // groups)
        found = kernel[rows].flatten(1)
        torch.testing.assert_close(
            found,
            net.weight[rows].flatten(1) @ context.bind(torch.eye(patch, dtype=torch.float64)).T,
        )


@pytest.mark.parametrize("family", ["binary", "hadamard"])
@pytest.mark.parametrize("name", ["conv1d", "conv2d groups", "transposed groups", "transposed 3d"])
def test_channel_mode_of_every_convolution(name, family):
    model, x = build(name, family, conv="channel")
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    torch.testing.assert_close(sp.unsuperpose(model, 3)(x), model(x, task=3))


def test_channel_mode_binds_channels():
    torch.manual_seed(0)
    net = nn.Conv2d(4, 6, 3)
    model = sp.superpose(net, tasks=5, conv="channel", private="shared")
    x = torch.randn(len(TASKS), 4, 7, 7)
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    signs = sp.contexts.Binary().context(sp.contexts.Key(0, "weight", 3), 4).signs
    torch.testing.assert_close(model(x, task=3), net(x * signs.view(4, 1, 1)))
    torch.testing.assert_close(sp.unsuperpose(model, 3)(x), model(x, task=3))


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_sequence_layers_know_where_their_rows_are(batch_first):
    torch.manual_seed(0)
    x = torch.randn(5, 5, 8)  # as many tokens as rows: a guess could be wrong
    for net in (encoder(batch_first=batch_first), First(nn.GRU(8, 4, batch_first=batch_first))):
        model = randomise_private(sp.superpose(net, tasks=4))
        mixed = model(x, task=TASKS)
        dim = 0 if batch_first else 1
        each = [model(x.select(dim, i).unsqueeze(dim), task=int(t)) for i, t in enumerate(TASKS)]
        torch.testing.assert_close(mixed, torch.cat(each, dim))


def test_rows_that_cannot_be_told_apart_raise():
    class Folding(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x):
            return self.linear(x.flatten(0, 1))

    tasks = [0, 1, 0]
    with pytest.raises(sp.SuperposeError, match=r"no input has 3 rows: the shapes are \(1, 2, 6\)"):
        sp.superpose(nn.Linear(6, 4))(torch.randn(1, 2, 6), task=tasks)
    with pytest.raises(sp.SuperposeError, match="dimension 0 should be the 3 rows"):
        sp.superpose(Folding())(torch.randn(3, 2, 6), task=tasks)
    square = torch.randn(3, 3, 6)
    with pytest.raises(sp.SuperposeError, match="more than one dimension has size 3"):
        sp.superpose(nn.Linear(6, 4))(square, task=tasks)
    declared = sp.superpose(nn.Linear(6, 4), batch_dim=1)
    torch.testing.assert_close(declared(square, task=tasks)[:, 1], declared(square[:, 1], task=1))
    for shape in ((6, 3, 4, 4), (3, 3, 2, 4, 4), (3, 4, 4)):
        with pytest.raises(sp.SuperposeError, match="not a batch of 3 rows"):
            sp.superpose(nn.Conv2d(3, 2, 1))(torch.randn(*shape), task=tasks)
    alone = torch.randn(3, 6)
    with pytest.raises(sp.SuperposeError, match=r"\(3, 6\), which has no dimension for rows"):
        sp.superpose(nn.MultiheadAttention(6, 2))(alone, alone, alone, task=tasks)
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    with pytest.raises(sp.SuperposeError, match="takes statistics over the rows of the batch"):
        sp.superpose(net)(torch.randn(3, 6), task=tasks)
    net[1] = nn.BatchNorm1d(4, track_running_stats=False)
    for model in (sp.superpose(net), sp.superpose(net).eval()):
        with pytest.raises(sp.SuperposeError, match="takes statistics over the rows of the batch"):
            model(torch.randn(3, 6), task=tasks)
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 6), torch.randn(2, 6)])
    model = sp.superpose(nn.LSTM(6, 4))
    assert model(packed, task=1)[0].data.shape == (6, 4)
    with pytest.raises(sp.SuperposeError, match="a padded batch of sequences only"):
        model(packed, task=[0, 1])


@pytest.mark.parametrize("private", ["per-task", "shared", "none"])
@pytest.mark.parametrize("name", ["attention", "lstm", "conv2d", "norms"])
def test_private_modes_of_every_layer(name, private):
    model, x = build(name, "binary", private=private)
    assert model(x, task=1).shape == model(x, task=TASKS).shape if name != "norms" else True
    state = model.state_dict()
    assert any("private" in key for key in state) == (private == "per-task")
    if private == "none":
        assert all("weight" in key for key in state)


class Reader(nn.Module):
    """Words and positions are looked up, the latter once for all rows."""

    def __init__(self, batch_first=True, **options):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 6, **options), nn.Embedding(4, 6)
        self.linear = nn.Linear(6, 3)
        self.batch_first = batch_first

    def forward(self, ids):
        places = torch.arange(ids.shape[1 if self.batch_first else 0])
        places = self.places(places.unsqueeze(0 if self.batch_first else 1))
        return self.linear(self.words(ids) + places)


IDS = torch.tensor([[2, 0, 8, 2], [1, 1, 2, 8], [3, 4, 5, 6], [8, 8, 8, 2], [7, 2, 2, 1]])


def private_tables(**options):
    torch.manual_seed(0)
    dim = 0 if options.get("batch_first", True) else 1
    net, tables = Reader(**options).double(), ["words", "places"]
    model = sp.superpose(net, tasks=4, private_layers=tables, batch_dim=dim)
    return randomise_private(model)


@pytest.mark.parametrize(
    "options",
    [{}, {"padding_idx": 2}, {"padding_idx": -1}, {"scale_grad_by_freq": True}, {"sparse": True}],
)
def test_private_tables(options):
    model = private_tables(**options)
    plain, one = sp.unsuperpose(model, 2), model(IDS, task=2)
    torch.testing.assert_close(one, plain(IDS))
    alone, found = _gradients(plain, plain(IDS)), _gradients(model, one)
    for table in ("words", "places"):
        torch.testing.assert_close(found[f"{table}.private.weight.2"], alone[f"{table}.weight"])
    mixed, each = model(IDS, task=TASKS), rows_one_by_one(model, TASKS, IDS)
    torch.testing.assert_close(mixed, each)
    found, expected = _gradients(model, mixed), _gradients(model, each)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name].to_dense())
    learned = found["words.private.weight.2"].abs().sum(1).nonzero().flatten()
    assert set(learned.tolist()) == {0, 2, 8} - {model.words.padding_idx}


def test_a_table_is_looked_up_along_the_rows():
    model = private_tables(batch_first=False)
    mixed = model(IDS.T, task=TASKS)
    each = [model(IDS[i : i + 1].T, task=int(task)) for i, task in enumerate(TASKS)]
    torch.testing.assert_close(mixed, torch.cat(each, 1))


def test_a_table_with_a_largest_norm():
    model = private_tables(max_norm=0.5)
    plain = sp.unsuperpose(model, 2)
    torch.testing.assert_close(model(IDS, task=2), plain(IDS))
    own = dict(model.named_parameters())["words.private.weight.2"]
    torch.testing.assert_close(own, plain.words.weight)
    assert own.detach().norm(dim=1).max() < 0.5 + 1e-6
    with pytest.raises(sp.SuperposeError, match="'words' shortens the entries of its table"):
        model(IDS, task=TASKS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm2d(4),
        lambda: nn.BatchNorm2d(4, momentum=None, affine=False),
        lambda: nn.SyncBatchNorm(4),
        lambda: nn.InstanceNorm2d(4, track_running_stats=True),
    ],
)
def test_running_statistics_are_the_tasks_own(make):
    torch.manual_seed(0)
    norm = make()
    net = nn.Sequential(nn.Conv2d(2, 4, 1), norm)
    model, before = sp.superpose(net, "identity", tasks=2), copy.deepcopy(norm.state_dict())
    for x in torch.randn(3, 5, 2, 6, 6):
        assert torch.equal(model(x, task=1), net(x))
    after = model.state_dict()
    for name, buffer in norm.named_buffers():
        assert torch.equal(after[f"1.private.{name}.1"], buffer)
        assert torch.equal(after[f"1.private.{name}.0"], before[name])
        assert torch.equal(after[f"1.{name}"], before[name])
    assert norm.running_mean.abs().min() > 0
    with pytest.raises(sp.SuperposeError, match="takes statistics over the rows of the batch"):
        model(x, task=TASKS % 2)
    assert torch.equal(model.eval()(x, task=1), net.eval()(x))
    assert torch.equal(sp.unsuperpose(model, 1)(x), net(x))
    assert (model(x, task=0) - net(x)).abs().max() > 0.01
    torch.testing.assert_close(model(x, task=TASKS % 2), rows_one_by_one(model, TASKS % 2, x))


def test_attention_masks_of_every_kind():
    torch.manual_seed(0)
    net = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=True).double()
    model = randomise_private(sp.superpose(net, "hadamard", tasks=4)).eval()
    q, k, v = (torch.randn(5, t, d, dtype=torch.float64) for t, d in ((3, 8), (4, 6), (4, 5)))
    padding = torch.zeros(5, 4, dtype=torch.bool)
    padding[1:, 3], padding[2, 2] = True, True
    mask = torch.triu(torch.ones(3, 4, dtype=torch.bool), 1)
    numbers = torch.randn(10, 3, 4, dtype=torch.float64)
    for options in ({}, {"key_padding_mask": padding}, {"attn_mask": mask, "need_weights": False}):
        found, weights = model(q, k, v, task=TASKS, **options)
        for i, task in enumerate(TASKS.tolist()):
            own = dict(options)
            if "key_padding_mask" in own:
                own["key_padding_mask"] = padding[i : i + 1]
            expected, seen = model(q[i : i + 1], k[i : i + 1], v[i : i + 1], task=task, **own)
            torch.testing.assert_close(found[i : i + 1], expected)
            if weights is not None:
                torch.testing.assert_close(weights[i : i + 1], seen)
    extras = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    extra = randomise_private(sp.superpose(extras.double(), tasks=4)).eval()
    x = torch.randn(5, 4, 8, dtype=torch.float64)
    options = {"attn_mask": torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)}
    mixed = extra(x, x, x, task=TASKS, **options)[0]
    each = [extra(*[x[i : i + 1]] * 3, task=int(t), **options)[0] for i, t in enumerate(TASKS)]
    torch.testing.assert_close(mixed, torch.cat(each))
    by_head = model(q, k, v, task=TASKS, attn_mask=numbers, average_attn_weights=False)[1]
    expected = model(q, k, v, task=2, attn_mask=numbers, average_attn_weights=False)[1]
    torch.testing.assert_close(by_head[0], expected[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_rows_start_from_the_states_that_they_are_given(kind):
    torch.manual_seed(0)
    net = kind(6, 4, 2, batch_first=True, bidirectional=True).double()
    model = randomise_private(sp.superpose(net, tasks=4))
    x, states = torch.randn(5, 3, 6).double(), torch.randn(2, 4, 5, 4).double()

    def started(rows):
        parts = tuple(states[:, :, rows].contiguous())
        return parts if kind is nn.LSTM else parts[0]

    mixed, _ = model(x, started(slice(None)), task=TASKS)
    for i, task in enumerate(TASKS.tolist()):
        row = slice(i, i + 1)
        torch.testing.assert_close(mixed[row], model(x[row], started(row), task=task)[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda dropout: First(nn.LSTM(8, 8, 2, batch_first=True, dropout=dropout)),
        lambda dropout: SelfAttention(dropout=dropout),
        lambda dropout: CrossAttention(dropout=dropout),
    ],
    ids=["recurrent", "attention", "attention without weights"],
)
def test_rows_of_many_tasks_are_dropped_out_while_training_only(make):
    torch.manual_seed(0)
    model, x = sp.superpose(make(0.5), tasks=4), torch.randn(5, 3, 8)
    assert (model(x, task=TASKS) - model(x, task=TASKS)).abs().max() > 1e-3
    model.eval()
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    last = sp.superpose(First(nn.LSTM(8, 8, 2, batch_first=True, dropout=1.0)), tasks=4)
    assert last(x, task=TASKS).abs().max() > 0, "the last layer's output is not dropped out"


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_causal_hint_needs_its_mask(need_weights):
    torch.manual_seed(0)
    net = nn.MultiheadAttention(8, 2, batch_first=True)
    model = randomise_private(sp.superpose(net, tasks=4)).eval()
    x = torch.randn(5, 3, 8)
    options = {"is_causal": True, "need_weights": need_weights}
    for task in (2, TASKS):
        with pytest.raises(RuntimeError, match="Need attn_mask if specifying the is_causal hint"):
            model(x, x, x, task=task, **options)
    options["attn_mask"] = nn.Transformer.generate_square_subsequent_mask(3)
    mixed = model(x, x, x, task=TASKS, **options)[0]
    each = [model(*[x[i : i + 1]] * 3, task=int(t), **options)[0] for i, t in enumerate(TASKS)]
    torch.testing.assert_close(mixed, torch.cat(each))
    assert (mixed - model(x, x, x, task=TASKS)[0]).abs().max() > 1e-3


def test_the_encoders_fused_path_is_not_taken():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2)
    model = sp.superpose(net, tasks=3).eval()
    x = torch.randn(4, 5, 8)
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[1:, 4] = True
    with_gradients = model(x, src_key_padding_mask=padding, task=2)
    with torch.no_grad():
        without = model(x, src_key_padding_mask=padding, task=2)
    torch.testing.assert_close(with_gradients[~padding], without[~padding])
    assert (without - net.eval()(x)).abs().max() > 0.1
    plain = sp.unsuperpose(model)
    assert plain.layers[0].activation_relu_or_gelu == 1
    assert plain.use_nested_tensor == net.use_nested_tensor


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


def wrapped(module):
    """As `accelerate` does: the forward of one module is replaced, its class stays."""
    module.forward = functools.partial(_tripled, type(module).forward, module)
    return module


def _tripled(forward, module, *inputs):
    return 3 * forward(module, *inputs)


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
        model = sp.superpose(net, tasks=3)
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
    model = randomise_private(sp.superpose(net, tasks=4, private_layers=tables)).eval()
    expected = _first(model(x, task=TASKS))
    assert (expected - _first(model(x, task=1))).abs().max() > 1e-3
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(_first(other(x, task=TASKS)), expected)
        for mine, plain in zip(_named(other), _named(net), strict=True):
            assert isinstance(mine, type(plain))
            assert isinstance(mine, sp.nn.Layer)
            assert mine.told().endswith(plain.told())
        assert [type(m) for m in _named(sp.unsuperpose(other))] == [type(m) for m in _named(net)]


def _named(net):
    return [module for module in net.modules() if isinstance(module, Named)]


def _first(output):
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("taken", ["private", "mode", "bind_channels"])
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

    net = nn.Sequential(nn.Linear(4, 4), Relational())
    with pytest.warns(UserWarning, match="Relational '1' already has 'bases'.* stay shared"):
        assert sp.superpose(net).summary().shared == ["1.bases"]
    with pytest.raises(sp.SuperposeError, match="Relational '1' already has 'bases'"):
        sp.superpose(net, private_layers=["1"])
    assert sp.superpose(net, skip=["1"]).summary().shared == ["1.bases"]


class ByName(nn.Module):
    """Calls a layer with the names of its arguments."""

    def __init__(self, layer, **options):
        super().__init__()
        self.layer, self.options = layer, options
        self.other = nn.Linear(2, 2)  # so that there is something to superpose

    def forward(self, x):
        return _first(self.layer(input=x, **self.options))


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
    for plain, kind in (forms.WEIGHTED | forms.NORMS | forms.TABLES).items():
        own = [name for name in inspect.signature(kind.forward).parameters if name != "task"]
        assert own == list(inspect.signature(plain.forward).parameters), kind


def test_complex_networks():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2), nn.Dropout(0.5),
        nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip
    model = sp.superpose(net, "complex", tasks=4)
    x = torch.randn(len(TASKS), 3, 6, 6)
    output = model(x, task=1)
    assert output.dtype == torch.float32
    output.sum().backward()
    torch.optim.RMSprop(model.parameters()).step()
    model = randomise_private(model).eval()
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    assert model.state_dict()["0.weight"].dtype == torch.complex64
    fresh = sp.superpose(net, "complex").state_dict()["6.weight"]
    torch.testing.assert_close(fresh.abs(), net[6].weight.abs())
    assert fresh.imag.abs().mean() > 0.3 * fresh.abs().mean()


def test_complex_forms_keep_mode_precision_and_options():
    norm = nn.BatchNorm1d(6, eps=0.01, momentum=0.0).requires_grad_(False)
    net = nn.Sequential(
        nn.Linear(6, 6), norm, nn.BatchNorm1d(6, bias=False), nn.ReLU(), nn.Dropout(0.5)
    )
    for training in (True, False):
        model = sp.superpose(net.double().train(training), "complex", private="shared")
        modes = {m.training for n, m in model.named_modules() if "private" not in n}
        assert modes == {training}
        assert (model[1].eps, model[1].momentum) == (0.01, 0.0)
        assert not any(parameter.requires_grad for parameter in model[1].parameters())
        assert all(parameter.requires_grad for parameter in model[2].parameters())
        assert model[2].bias is None
        state = [t.dtype for n, t in model.state_dict().items()]
        assert set(state) == {torch.float64, torch.complex128}
        assert model(torch.randn(5, 6, dtype=torch.float64), task=1).dtype == torch.float64
    meta = complexify(nn.BatchNorm2d(4, device="meta"), seed=0)
    assert {tensor.device.type for tensor in meta.state_dict().values()} == {"meta"}


def test_a_complex_batch_norm_averages_as_its_momentum_says():
    torch.manual_seed(0)
    batches = torch.randn(3, 20, 6, dtype=torch.complex128) + torch.arange(3).view(3, 1, 1)
    for momentum in (None, 0.0, 0.5):
        net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=momentum)).double()
        model = sp.superpose(net, "complex", tasks=2)
        with torch.no_grad():
            model[0].weight.copy_(torch.eye(6))
            model[0].private["bias"].of(1).zero_()
        context = model.selection(1).layers["0"].contexts["weight"]
        for batch in batches:
            model(batch, task=1)
        seen = [functional.complex_statistics(context.bind(b), eps=1e-5) for b in batches]
        for k, (name, start) in enumerate(
            (("mean", torch.zeros(6)), ("covariance", torch.tensor([0.5, 0.5, 0.0])))
        ):
            found = model[1].private[f"running_{name}"].of(1)
            each = [start.to(found.dtype).expand(found.shape), *(one[k] for one in seen)]
            weights = {None: [0, 1 / 3, 1 / 3, 1 / 3], 0.0: [1, 0, 0, 0]}
            used = weights.get(momentum, [0.125, 0.125, 0.25, 0.5])
            expected = sum(weight * value for weight, value in zip(used, each, strict=True))
            torch.testing.assert_close(found, expected)
            untouched = model[1].private[f"running_{name}"].of(0)
            torch.testing.assert_close(untouched, each[0])


def test_a_module_in_two_places_of_a_complex_network():
    torch.manual_seed(0)
    relu = nn.ReLU()
    net = nn.Sequential(nn.Linear(6, 8), relu, nn.Linear(8, 8), relu, nn.Linear(8, 4))
    apart = nn.Sequential(*(copy.deepcopy(module) for module in net))
    x = torch.randn(5, 6)
    model = sp.superpose(net, "complex", tasks=2)
    assert model[1] is model[3]
    assert torch.equal(model(x, task=1), sp.superpose(apart, "complex", tasks=2)(x, task=1))


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.relu = nn.ReLU()

    def forward(self, x, mask=None, extra=()):
        y = self.linear(x) if mask is None else self.linear(self.relu(x["x"])) * mask
        return {"y": y, "parts": (y[:1], [y[1:], *extra]), "count": len(y)}


def test_all_that_a_complex_network_takes_and_gives_is_real():
    torch.manual_seed(0)
    model, x = sp.superpose(Several(), "complex", tasks=2), torch.randn(5, 6)
    output = model(x, task=1)
    expected = sp.unsuperpose(model, 1)(x + 0j)
    assert output["count"] == 5
    assert output["y"].dtype == torch.float32
    torch.testing.assert_close(output["y"], expected["y"].real)
    torch.testing.assert_close(output["parts"][0], expected["parts"][0].real)
    torch.testing.assert_close(output["parts"][1][0], expected["parts"][1][0].real)
    nested = model({"x": x}, mask=torch.ones(4), extra=(x,), task=1)
    assert torch.equal(nested["parts"][1][1], x)
    torch.testing.assert_close(nested["y"], model(x.relu(), task=1)["y"])


def test_what_was_customised_has_no_complex_form():
    class Norm(nn.BatchNorm1d):
        def forward(self, input):
            return 2 * super().forward(input)

    for custom in (
        Norm(6),
        parametrizations.weight_norm(nn.Linear(6, 6)),
        wrapped(nn.Linear(6, 6)),
    ):
        with pytest.raises(sp.SuperposeError, match="'1' has no complex-valued form"):
            sp.superpose(nn.Sequential(nn.Linear(6, 6), custom), "complex")


def test_complex_weights_differ_by_seed_and_layer_and_frozen_ones_stay_frozen():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].load_state_dict(net[0].state_dict())
    net[0].weight.requires_grad_(False)
    one, two = (sp.superpose(net, "complex", seed=seed) for seed in (0, 1))
    for a, b in ((one[0], one[1]), (one[0], two[0])):
        assert (a.weight - b.weight).abs().max() > 0.01
        torch.testing.assert_close(a.weight.abs(), b.weight.abs())
    assert [layer.weight.requires_grad for layer in one] == [False, True]


def test_a_complex_number_is_dropped_as_a_whole():
    torch.manual_seed(0)
    dropped = complexify(nn.Dropout(0.5), seed=0)(torch.ones(1000) * (1 + 2j))
    torch.testing.assert_close(dropped.imag, 2 * dropped.real)
    assert 300 < (dropped == 0).sum() < 700


@pytest.mark.parametrize("function", [F.relu, F.gelu])
def test_functions_that_complex_numbers_do_not_have_are_told(function):
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.b(function(self.a(x)))

    model = sp.superpose(Functional(), "complex", tasks=2)
    with pytest.raises(sp.SuperposeError, match=r"use activations that are modules, .* 'phase'"):
        model(torch.randn(3, 4), task=1)
    with pytest.raises(RuntimeError, match="size of tensor a"):
        model(torch.randn(3, 5), task=1)


def test_complex_batch_norm_whitens():
    torch.manual_seed(0)
    real, imag = torch.randn(2, 4000, 3, dtype=torch.float64)
    x = torch.complex(3 * real + 1, 2 * real + imag - 2)
    mean, covariance = functional.complex_statistics(x, eps=0.0)
    y = functional.complex_batch_norm(x, mean, covariance, None, None)
    after_mean, after = functional.complex_statistics(y, eps=0.0)
    torch.testing.assert_close(after_mean, torch.zeros_like(after_mean))
    identity = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64).expand(3, 3)
    torch.testing.assert_close(after, identity)
    damped = functional.complex_statistics(x, eps=0.5)[1]
    added = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    torch.testing.assert_close(damped, covariance + added)
    scale = torch.tensor([2.0, 3.0, 0.5], dtype=torch.float64).expand(3, 3)
    scaled = functional.complex_batch_norm(x, mean, covariance, scale, None)
    expected = torch.complex(2.0 * y.real + 0.5 * y.imag, 0.5 * y.real + 3.0 * y.imag)
    torch.testing.assert_close(scaled, expected)
    norm = sp.nn.ComplexBatchNorm(3)
    z = x.to(torch.complex64)
    for _ in range(200):
        norm(z)
    torch.testing.assert_close(norm.running_mean, mean.to(torch.complex64))
    torch.testing.assert_close(norm.running_covariance, covariance.float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.eval()(z), norm.train()(z), rtol=1e-3, atol=1e-3)
    line = 100 * torch.complex(real, 2 * real).to(torch.complex64)  # has no second direction
    assert norm(line).isfinite().all()


def test_the_papers_resnet():
    torch.manual_seed(0)
    net = sp.lab.ResNet18(width=4)
    model = sp.superpose(net, tasks=3, private="none", skip=["stem"])
    x = torch.randn(4, 3, 32, 32)
    assert "stem.weight" in model.summary().shared
    assert len(model.summary().superposed) == 20
    assert not any("norm" in name or "bias" in name for name in model.state_dict())
    assert model(x, task=2).shape == (4, 10)
    assert (model(x, task=2) - model(x, task=1)).abs().max() > 0.01
    per_task = randomise_private(sp.superpose(net, tasks=4, skip=["stem"])).eval()
    rows = torch.randn(len(TASKS), 3, 16, 16)
    torch.testing.assert_close(
        per_task(rows, task=TASKS), rows_one_by_one(per_task, TASKS, rows), rtol=1e-3, atol=1e-4
    )
    assert sp.superpose(net, "complex", private="none")(x, task=1).shape == (4, 10)


def test_hadamard_is_fast_for_every_size_and_differentiable():
    for size in (1, 2, 3, 28, 64, 67, 134, 784, 1024):
        x = torch.randn(2, size, dtype=torch.float64, requires_grad=True)
        y = functional.hadamard(x)
        torch.testing.assert_close(functional.hadamard(y), x)
        (gradient,) = torch.autograd.grad((y * y.detach()).sum(), x)
        torch.testing.assert_close(gradient, x)
