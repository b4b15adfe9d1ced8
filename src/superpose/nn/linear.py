"""Linear layers in superposition: y = W C(k) x + b."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose import functional
from superpose.nn.binding import base_matrix, bound_weight
from superpose.nn.centring import centred, shifted
from superpose.nn.gate import opened, unmoved
from superpose.nn.layer import Layer, MatrixLayout
from superpose.nn.observing import observe
from superpose.nn.quantised import full, is_quantised
from superpose.nn.reading import of_active_task
from superpose.nn.rows import row_dim, rows_at
from superpose.nn.selection import NotDirect, Selected, TaskIds
from superpose.nn.standalone import standalone

MANY_ROWS = 12  # a product with x costs what signs cost for this many times as many outputs


class LinearLayer(Layer):
    """A weight that multiplies the last dimension; the input is bound."""

    is_linear_map = True
    has_input_mean = True
    weight: Any = of_active_task("weight")
    bias: Any = of_active_task("bias")

    def bound(self) -> dict[str, tuple[int, int]]:
        """One weight, of all the inputs."""
        return {"weight": (self.to_matrix("weight", self.stored("weight")).shape[-1], 1)}

    def superposed(self, x: Tensor, task: TaskIds | None) -> Tensor:
        """W₀ x + W C(k) (x − μ) + B A x + b, as far as it has them.

        `task` is for a layer used by itself, outside a superposed model.
        """
        selected, rows = self.selected(task)
        weight = selected.private.get("weight", self.stored("weight"))
        x = functional.complex_like(x, weight)
        bias = selected.private.get("bias", self.stored("bias"))
        observe(self, selected, self.features_last(x), rows)
        if rows is not None:
            return self.add_bias(self.product(selected, "weight", x, rows), bias, rows)
        matrix = self.to_matrix("weight", weight)
        context, base = selected.contexts.get("weight"), self.bases.get("weight")
        if context is None:
            return F.linear(x, matrix, bias)
        if base is not None and self._has_many_rows(x):
            whole = self.to_matrix("weight", bound_weight(self, selected, "weight"))
            return F.linear(x, whole, shifted(self, selected, bias))
        bound = unmoved(context.bind(centred(self, selected, "weight", x)), selected.closed)
        own_bias = bias if base is None else None
        y = opened(
            functional.linear(bound, matrix, own_bias, self.guides.get("weight")), selected.closed
        )
        low_rank = selected.low_rank("weight")
        if low_rank is not None:
            down, up = low_rank
            y = y + F.linear(F.linear(x, down), up)
        return y if base is None else y + F.linear(x, base_matrix(self, "weight"), bias)

    def _has_many_rows(self, x: Tensor) -> bool:
        """Whether W₀ + W C(k) as one weight is less work than a product for each of the two."""
        if "weight" in self.guides:  # which is for the inputs that are bound
            return False
        if is_quantised(self.stored("weight")) or is_quantised(self.bases["weight"]):
            return False  # what is quantised has products of its own
        effort = self.contexts["weight"].family.effort
        return x.numel() * MANY_ROWS >= self.stored("weight").numel() * effort


class Linear(LinearLayer, MatrixLayout, nn.Linear):
    """`nn.Linear` with a context for each task.

    >>> layer = Linear(8, 3, family="hadamard", seed=0)
    >>> layer(torch.ones(2, 8), task=5).shape
    torch.Size([2, 3])
    >>> layer(torch.ones(2, 8), task=[5, 7]).shape
    torch.Size([2, 3])
    """

    has_complex_form = True
    __init__ = standalone(nn.Linear)

    def forward(self, input: Tensor, task: TaskIds | None = None) -> Tensor:
        """The product, and the argument's name, of PyTorch's layer."""
        return self.superposed(input, task)


class TransposedLinear(LinearLayer):
    """A linear layer that keeps its weight as (inputs, outputs), as GPT-2's `Conv1D` does."""

    def to_matrix(self, name: str, weight: Tensor) -> Tensor:
        """The weight transposed."""
        return full(weight).mT

    def from_matrix(self, name: str, matrix: Tensor) -> Tensor:
        """The matrix transposed."""
        return matrix.mT

    def dims_of_inputs(self, name: str) -> tuple[int, ...]:
        """The first: outputs come last."""
        return (0,)

    def forward(self, x: Tensor, task: TaskIds | None = None) -> Tensor:
        """The product, and the argument's name, of GPT-2's layer."""
        return self.superposed(x, task)


class Embedding(Layer, nn.Embedding):
    """A table that every task has for itself: a look-up has no input that could be bound."""

    binds_weights = False
    weight: Any = of_active_task("weight")

    def bound(self) -> dict[str, tuple[int, int]]:
        """No weight."""
        return {}

    def forward(self, input: Tensor) -> Tensor:
        """The task's entries of the table."""
        selected, rows = self.selected()
        if rows is None:
            return self.look_up_one(selected.private["weight"], input)
        if self.max_norm is not None:
            raise NotDirect(
                self.path, f"rescales entries of its table in place (max_norm={self.max_norm})"
            )
        dim = row_dim(self)
        if input.ndim > 1 and input.shape[dim] == 1:  # positions, looked up once for all rows
            input = input.repeat_interleave(rows, dim)
        front = input.movedim(rows_at(self, input.unsqueeze(-1), rows), 0)
        return self.look_up(selected, front).movedim(0, dim)

    def look_up_one(self, table: Tensor, input: Tensor) -> Tensor:
        """One task's entries; its gradient is dense, because the table is a part of a tensor."""
        if self.max_norm is not None:  # of the data: the task's other tensors do not change
            torch.embedding_renorm_(table.data, input.contiguous(), self.max_norm, self.norm_type)
        frequent = self.scale_grad_by_freq
        return F.embedding(input, table, self.padding_idx, scale_grad_by_freq=frequent)

    def look_up(self, selected: Selected, input: Tensor) -> Tensor:
        """The entries of each row's own table; rows come first."""
        rows = input.shape[0]
        offset = torch.arange(rows, device=input.device) * self.num_embeddings
        flat = input + offset.view([rows] + [1] * (input.ndim - 1))
        tables = selected.private["weight"].flatten(0, 1)
        y = F.embedding(flat, tables, scale_grad_by_freq=self.scale_grad_by_freq)
        if self.padding_idx is None:
            return y
        padding = (input == self.padding_idx).unsqueeze(-1)
        return torch.where(padding, y.detach(), y)  # its entry is looked up and never learned
