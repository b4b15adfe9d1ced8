"""Small streams and networks that the tests of learning share."""

import torch
from torch import nn

from superpose.learning import TensorStream


def make_stream(tasks=3, period=60, batch_size=16, rows=128, dim=8):
    """Tasks that contradict each other: each asks for the sign of another coordinate."""
    x = torch.randn(rows, dim, generator=torch.Generator().manual_seed(0))
    data = [(x, (x[:, task] > 0).long()) * 2 for task in range(tasks)]
    return TensorStream(data, period=period, batch_size=batch_size)


def make_net(dropout=0.0, dim=8, units=64):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(dim, units), nn.ReLU(), nn.Dropout(dropout), nn.Linear(units, 2)
        )


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def stop_after(steps):
    """A `stop` that ends a run after so many steps."""
    asked = 0

    def stop():
        nonlocal asked
        asked += 1
        return asked >= steps

    return stop
