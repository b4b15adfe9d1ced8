"""What the tests of silent errors share: a network of two layers, and models that learned."""

import torch
from checks import scramble
from torch import nn

import superpose as sp

TASKS = [0, 1, 2, 1]


class Two(nn.Module):
    """Two layers, for networks that do something of their own with rows."""

    def __init__(self, bias=True):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, bias=bias), nn.Linear(8, 8, bias=bias)

    def forward(self, x):
        return self.second(self.first(x).relu())


def model_of(net, **options):
    torch.manual_seed(0)
    return scramble(sp.superpose(net, "hadamard", tasks=3, **options)).eval()


def opened(net, task=0, **options):
    """A model with a base, of which one task has learned, and the others are closed."""
    torch.manual_seed(0)
    model = scramble(sp.superpose(net, "hadamard", tasks=3, base=True, **options)).eval()
    model.private_state.begun.clear()
    model.begin(task)
    return model
