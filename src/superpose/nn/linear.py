"""Linear layers in superposition: y = W C(k) x + b."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose import functional
from superpose.nn.layer import Layer, MatrixLayout, standalone
from superpose.nn.selection import TaskIds


class LinearLayer(Layer):
    """A weight that multiplies the last dimension; the input is bound."""

    weight: Any
    bias: Any

    def bound(self) -> dict[str, tuple[int, int]]:
        """One weight, of all the inputs."""
        return {"weight": (self.to_matrix(self.weight).shape[-1], 1)}

    def superposed(self, x: Tensor, task: TaskIds | None) -> Tensor:
        """W C(k) x + b; `task` is for a layer used by itself, outside a superposed model."""
        selected, rows = self.selected(task)
        weight = self.to_matrix(selected.private.get("weight", self.weight))
        x = functional.complex_like(x, weight)
        if "weight" in selected.contexts:
            x = self.bind(selected.contexts["weight"], x, rows)
        bias = selected.private.get("bias", self.bias)
        if rows is None:
            return functional.linear(x, weight, bias, self.guides.get("weight"))
        return self.add_bias(self.multiply(x, weight, rows), bias, rows)

    def multiply(self, x: Tensor, weight: Tensor, rows: int) -> Tensor:
        """W x with one weight for all rows, or a private one for each (rows, outputs, inputs)."""
        if weight.ndim == 2:
            return functional.linear(x, weight, guide=self.guides.get("weight"))
        dim = self.rows_at(x, rows)
        front = x.movedim(dim, 0)
        y = front.reshape(rows, -1, x.shape[-1]) @ weight.mT
        return y.reshape(*front.shape[:-1], -1).movedim(0, dim)


class Linear(LinearLayer, MatrixLayout, nn.Linear):
    """`nn.Linear` with a context for each task.

    >>> layer = Linear(8, 3, family="hadamard", seed=0)
    >>> layer(torch.ones(2, 8), task=5).shape
    torch.Size([2, 3])
    >>> layer(torch.ones(2, 8), task=[5, 7]).shape
    torch.Size([2, 3])
    """

    __init__ = standalone(nn.Linear)

    def forward(self, input: Tensor, task: TaskIds | None = None) -> Tensor:
        """The product, and the argument's name, of PyTorch's layer."""
        return self.superposed(input, task)


class TransposedLinear(LinearLayer):
    """A linear layer that keeps its weight as (inputs, outputs), as GPT-2's `Conv1D` does."""

    def to_matrix(self, weight: Tensor) -> Tensor:
        """The weight transposed."""
        return weight.mT

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """The matrix transposed."""
        return matrix.mT

    def forward(self, x: Tensor, task: TaskIds | None = None) -> Tensor:
        """The product, and the argument's name, of GPT-2's layer."""
        return self.superposed(x, task)


class Embedding(Layer, nn.Embedding):
    """A table that every task has for itself: a look-up has no input that could be bound."""

    def bound(self) -> dict[str, tuple[int, int]]:
        """No weight."""
        return {}

    def forward(self, input: Tensor) -> Tensor:
        """The task's rows of the table."""
        selected, rows = self.selected()
        table = selected.private["weight"]
        if rows is None:
            return F.embedding(input, table, self.padding_idx)
        dim = self.rows_at(input.unsqueeze(-1), rows)
        front = input.movedim(dim, 0)
        offset = torch.arange(rows, device=input.device) * self.num_embeddings
        flat = front + offset.view([rows] + [1] * (input.ndim - 1))
        return F.embedding(flat, table.flatten(0, 1)).movedim(0, dim)
