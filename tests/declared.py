"""Modules of a user's own, and what was declared for them, that the tests share."""

import torch
from torch import nn

import superpose as sp


def undeclared_product():
    """A new class each time: y = x @ W + b with W (inputs, outputs), as GPT-OSS keeps it."""

    class Product(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
            self.bias = nn.Parameter(torch.zeros(outputs))

        def forward(self, x):
            return x @ self.weight + self.bias

    return Product


class Product(undeclared_product()):
    """The same, declared."""


sp.nn.register(Product, {"weight": -2})


class Experts(nn.Module):
    """Both orientations in one module, with a bias for each expert, and a layer inside."""

    def __init__(self, inputs, outputs, experts=3):
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, inputs, 8) / inputs**0.5)
        self.down = nn.Parameter(torch.randn(experts, outputs, 8) / 8**0.5)
        self.shift = nn.Parameter(torch.randn(experts, outputs))
        self.gate = nn.Linear(inputs, experts)

    def forward(self, x):
        hidden = (x.unsqueeze(-2).unsqueeze(-2) @ self.up).squeeze(-2).relu()  # (…, experts, 8)
        each = torch.einsum("...ei,eoi->...eo", hidden, self.down) + self.shift
        return (self.gate(x).softmax(-1).unsqueeze(-1) * each).sum(-2)


sp.nn.register(Experts, {"up": -2, "down": -1})


class Heads(nn.Module):
    """Inputs before two dimensions of outputs."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, 2, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.einsum("...i,iho->...o", x, self.weight) + self.bias


sp.nn.register(Heads, {"weight": -3})


class Cells(nn.Module):
    def __init__(self, kind, inputs, hidden):
        super().__init__()
        self.cell = kind(inputs, hidden)

    def forward(self, x):
        h = self.cell(x)
        h = self.cell(x, h)
        return h[0] if isinstance(h, tuple) else h


class Twice(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.form = nn.Linear(inputs, 5), nn.Bilinear(5, inputs, outputs)

    def forward(self, x):
        return self.form(self.first(x), x)


DECLARED = {
    "inputs first": lambda m, n: nn.Sequential(Product(m, n)),
    "experts": lambda m, n: nn.Sequential(Experts(m, n)),
    "heads": lambda m, n: nn.Sequential(Heads(m, n)),
    "RNNCell": lambda m, n: Cells(nn.RNNCell, m, n),
    "LSTMCell": lambda m, n: Cells(nn.LSTMCell, m, n),
    "GRUCell": lambda m, n: Cells(nn.GRUCell, m, n),
    "Bilinear": lambda m, n: nn.Sequential(Twice(m, n)),
}
BOUND = {
    "inputs first": {"0.weight": 7},
    "experts": {"0.up": 7, "0.down": 8, "0.gate.weight": 7},
    "heads": {"0.weight": 7},
    "RNNCell": {"cell.weight_ih": 7, "cell.weight_hh": 6},
    "LSTMCell": {"cell.weight_ih": 7, "cell.weight_hh": 6},
    "GRUCell": {"cell.weight_ih": 7, "cell.weight_hh": 6},
    "Bilinear": {"0.first.weight": 7, "0.form.weight": 7},
}


def made(name, inputs=7, outputs=6):
    torch.manual_seed(0)
    return DECLARED[name](inputs, outputs).eval(), torch.randn(5, inputs)
