"""The small networks that tests share."""

import itertools

import torch
from checks import TASKS, randomise_private
from torch import nn

import superpose as sp


class MLP(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, inputs, units, outputs, hidden=2, bias=False):
        super().__init__()
        sizes = [inputs, *[units] * hidden, outputs]
        layers = [nn.Flatten()]
        for size, following in itertools.pairwise(sizes):
            layers += [nn.Linear(size, following, bias=bias), nn.ReLU()]
            nn.init.xavier_normal_(layers[-2].weight)
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.layers(x)


def mlp(bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return MLP(12, 16, 5, bias=bias).to(dtype)


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, groups=2),
        nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(6 * 16, 4),
    )  # fmt: skip


def nets(make=mlp, names="abc"):
    generator = torch.manual_seed(0)
    found = {name: make().eval() for name in names}
    for net in found.values():
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.3 * torch.rand(tensor.shape, generator=generator) - 0.1)
    return found


def wide():
    return MLP(48, 64, 5, bias=True)


def inputs(names="abc", points=10, shape=(48,)):
    """A few points, each of them ten times, so that those held out are no new ones."""
    generator = torch.Generator().manual_seed(1)
    some = {name: torch.randn(points, *shape, generator=generator) for name in names}
    return {name: x.repeat_interleave(10, 0) for name, x in some.items()}


def correlated(rows, size, generator, decay=0.9):
    """Inputs that fill some directions more than others."""
    turned = torch.linalg.qr(torch.randn(size, size, generator=generator)).Q
    scale = decay ** torch.arange(size)
    return torch.randn(rows, size, generator=generator) * scale @ turned


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


LAYERS = {
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
    net, shape = LAYERS[name]()
    model = randomise_private(sp.superpose(net.double(), family, tasks=4, **options)).eval()
    return model, torch.randn(len(TASKS), *shape, dtype=torch.float64)


class Relative(nn.Module):
    """As DeBERTa does it: x (B, 3, 4) meets a table, which layers were given without any rows."""

    def __init__(self, norm):
        super().__init__()
        self.table, self.norm = nn.Parameter(torch.randn(6, 4)), norm
        self.queries, self.keys = nn.Linear(4, 4), nn.Linear(4, 4)

    def heads(self, x):
        return x.view(x.size(0), x.size(1), 2, 2).permute(0, 2, 1, 3).flatten(0, 1)

    def forward(self, x):
        table = self.norm(self.table).unsqueeze(0)
        keys = self.heads(self.keys(table)).repeat(len(x), 1, 1)  # (B · heads, 6, 2)
        scores = self.heads(self.queries(x)) @ keys.mT
        return scores.view(len(x), -1)
