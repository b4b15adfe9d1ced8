"""The networks that golden files are loaded into, and what they are run on.

Files of every format use them: change none of them, add new ones.
"""

import hashlib
import itertools

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


class Tied(nn.Module):
    """A table and a head of one weight."""

    def __init__(self):
        super().__init__()
        self.words, self.middle, self.head = nn.Embedding(7, 6), nn.Linear(6, 6), nn.Linear(6, 7)
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(self.middle(self.words(ids)).relu())


class Tokens(nn.Module):
    """A token in front, and positions: tensors that the network keeps beside its layers."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.positions = nn.Parameter(torch.zeros(1, 4, 4))
        self.encoder = nn.ModuleDict({"fc": nn.Linear(4, 6)})

    def forward(self, x):
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.positions
        return self.encoder["fc"](x).sum(1)


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def deep():
    sizes = (6, 6, 6, 6, 3)
    each = [(nn.Linear(a, b), nn.Tanh()) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(module for pair in each for module in pair))


def conv():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2),
        nn.Flatten(),
        nn.Linear(27, 2),
    )


def grouped():
    return nn.Sequential(
        nn.Conv2d(4, 4, 2, groups=2),
        nn.GroupNorm(2, 4),
        nn.ConvTranspose2d(4, 4, 2, groups=2),
        nn.Flatten(),
        nn.Linear(64, 2),
    )


def encoder():
    return nn.Sequential(nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True))


class MixedTypes(nn.Module):
    """Half precision, with norms in single precision, as many networks have them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8).bfloat16(), nn.Linear(8, 3).bfloat16()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.second(self.norm(self.first(x).float()).bfloat16())


def rows_second():
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 2))


NETWORKS = {  # how each is made, the shape of its inputs, and the largest number of terms in a sum
    "mlp": (mlp, (5, 6), 8),
    "mlp, float64": (lambda: mlp().double(), (5, 6), 8),
    "mlp, bfloat16": (lambda: mlp().bfloat16(), (5, 6), 8),
    "deep": (deep, (5, 6), 6),
    "conv": (conv, (5, 2, 4, 4), 27),
    "conv, float64": (lambda: conv().double(), (5, 2, 4, 4), 27),
    "grouped": (grouped, (5, 4, 4, 4), 64),
    "encoder": (encoder, (5, 3, 8), 24),
    "recurrent": (Recurrent, (5, 3, 4), 6),
    "rows second": (rows_second, (3, 5, 6), 6),
    "tied": (Tied, (5, 3), 7),
    "tokens": (Tokens, (5, 3, 4), 16),
    "mixed types": (MixedTypes, (5, 6), 8),
}


def network(name: str) -> nn.Module:
    """The plain network; its weights are of no importance."""
    return NETWORKS[name][0]()


def inputs(name: str, task: int = 0) -> Tensor:
    """What the network is run on, by a formula; other tasks may learn from other numbers."""
    _, shape, _ = NETWORKS[name]
    count = torch.Size(shape).numel()
    if name == "tied":
        return (torch.arange(count) * (task + 2) % 7).view(shape)
    waves = (torch.arange(count, dtype=torch.float64) * (0.7 + 0.1 * task)).sin()
    return waves.view(shape).to(next(network(name).parameters()).dtype)


def tolerance(name: str) -> float:
    """10 · n · eps."""
    return 10 * NETWORKS[name][2] * torch.finfo(next(network(name).parameters()).dtype).eps


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's type, shape and bits."""
    told = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    told.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return told.hexdigest()
