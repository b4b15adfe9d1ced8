"""All modules that the matrix of laws is run on: how each is made, and what it is given."""

import torch
from customised import CUSTOM
from declared import DECLARED
from networks import LAYERS, encoder
from torch import nn


class Words(nn.Module):
    """Words, positions that are for all rows, a token in front, a scale beside the layers."""

    def __init__(self, **options):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 6, **options), nn.Embedding(4, 6)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.scale = nn.Parameter(torch.rand(6))
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]).unsqueeze(0))
        x = torch.cat([self.token.expand(len(ids), -1, -1), x], 1) * self.scale
        return self.head(self.body(x).tanh())


class Tied(nn.Module):
    """A table and a head of one weight."""

    def __init__(self):
        super().__init__()
        self.words, self.middle = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(self.middle(self.words(ids)).tanh())


class Residual(nn.Module):
    """Convolutions and norms around a sum, as in a ResNet, and a layer that runs twice."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.again, self.head = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 4)

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        x = x + self.again(self.again(x).tanh())
        return self.head(x.mean((2, 3)))


class Reads(nn.Module):
    """A layer that is called, and one whose weight and bias are read."""

    def __init__(self):
        super().__init__()
        self.called, self.read = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return nn.functional.linear(self.called(x).relu(), self.read.weight, self.read.bias)


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))


def ids(rows):
    return torch.randint(0, 9, (rows, 3), generator=torch.Generator().manual_seed(2))


def numbers(*shape):
    def draw(rows):
        generator = torch.Generator().manual_seed(2)
        return torch.randn(rows, *shape, dtype=torch.float64, generator=generator)

    return draw


def with_shape(make):
    return lambda: make()[0], lambda rows: numbers(*make()[1])(rows)


MODULES = {
    "mlp": (mlp, numbers(6)),
    "linear alone": (lambda: nn.Linear(6, 4), numbers(6)),
    **{name: with_shape(make) for name, make in LAYERS.items()},
    **{name: with_shape(make) for name, make in CUSTOM.items()},
    **{name: (lambda m=make: m(7, 6), numbers(7)) for name, make in DECLARED.items()},
    "words": (Words, ids),
    "words with padding": (lambda: Words(padding_idx=2), ids),
    "tied": (Tied, ids),
    "residual": (Residual, numbers(3, 5, 5)),
    "reads": (Reads, numbers(6)),
    "encoder no bias": (lambda: encoder(batch_first=True, bias=False), numbers(4, 8)),
}


def made(name):
    """A network in double precision, in evaluation mode."""
    torch.manual_seed(0)
    return MODULES[name][0]().double().eval()


def inputs(name, rows=5):
    return MODULES[name][1](rows)
