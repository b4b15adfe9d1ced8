"""What the tests of packing share."""

import pytest
import torch
from torch import nn

every_method = pytest.mark.parametrize("method", ["sum", "delta", "solve"])


def fitted(method, x):
    """Inputs, as an option of the one method that fits to them."""
    return {"calibration": x} if method == "solve" else {}


def error(packed, net, name, x):
    with torch.no_grad():
        wanted = net(x)
        return float((packed(x, task=name) - wanted).norm() / wanted.norm())


class Attending(nn.Module):
    """Cross-attention, so that queries and keys differ."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 2, batch_first=True, **options)
        self.head = nn.Linear(24, 3)

    def forward(self, x, y):
        attended = self.attention(x, y, value=y, need_weights=False)[0]
        return self.head(attended)
