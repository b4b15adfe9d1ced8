"""Networks, inputs and errors that the tests of packing and of analysis share."""

import copy
import itertools

import pytest
import torch
from torch import nn

every_method = pytest.mark.parametrize("method", ["sum", "delta", "solve"])


class MLP(nn.Module):
    def __init__(self, inputs=48, units=64, classes=5, bias=True):
        super().__init__()
        sizes = (inputs, units, units)
        self.hidden = nn.ModuleList(nn.Linear(a, b, bias) for a, b in itertools.pairwise(sizes))
        self.head = nn.Linear(units, classes, bias)

    def forward(self, x):
        for layer in self.hidden:
            x = layer(x).relu()
        return self.head(x)


def small(bias=True):
    return MLP(12, 16, 5, bias)


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, groups=2),
        nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(6 * 16, 4),
    )  # fmt: skip


class Attending(nn.Module):
    """Cross-attention, so that queries and keys differ."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 2, batch_first=True, **options)
        self.head = nn.Linear(24, 3)

    def forward(self, x, y):
        attended = self.attention(x, y, value=y, need_weights=False)[0]
        return self.head(attended)


def nets(make=MLP, names="abc"):
    """Models that differ in all their tensors."""
    generator = torch.manual_seed(0)
    made = {name: make().eval() for name in names}
    for net in made.values():
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.3 * torch.rand(tensor.shape, generator=generator) - 0.1)
    return made


def fine_tunes(base, names="abcd", rank=2):
    """Copies of a network whose matrices differ from its own by so many directions."""
    generator = torch.Generator().manual_seed(5)
    made = {name: copy.deepcopy(base) for name in names}
    for net in made.values():
        for tensor in net.parameters():
            rows = tensor.data.flatten(1) if tensor.ndim > 1 else tensor.data[:, None]
            left = torch.randn(len(rows), rank, generator=generator)
            right = torch.randn(rank, rows.shape[1], generator=generator)
            rows += 0.1 * left @ right
    return made


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


def fitted(method, x):
    """Inputs, as an option of the one method that fits to them."""
    return {"calibration": x} if method == "solve" else {}


@torch.no_grad()
def error(packed, net, name, x):
    wanted = net(x)
    return float((packed(x, task=name) - wanted).norm() / wanted.norm())


@torch.no_grad()
def rows_one_by_one(model, tasks, x):
    return torch.cat([model(x[i : i + 1], task=task) for i, task in enumerate(tasks)])
