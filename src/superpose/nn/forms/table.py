"""Tables: a look-up has no input that could be bound, so they are shared, or private as a whole."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from superpose.nn.layer import Layer


class Table(Layer):
    """`nn.EmbeddingBag` and tables of other packages: a task's rows are looked up together."""

    binds = False
    one_by_one = True


class Embedding(Table):
    """`nn.Embedding`. The gradient of a private table is dense: it is a part of a flat tensor."""

    padding_idx: int | None
    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool

    def forward(self, input: Tensor) -> Tensor:
        own, rows = self.own()
        if rows is not None:
            if input.ndim > 1 and input.shape[self.row_dim or 0] == 1:  # positions, for all rows
                input = input.repeat_interleave(len(rows), self.row_dim or 0)
            y: Tensor = self.by_task(own, rows, input)
            return y
        table = own.tensors["weight"]
        if self.max_norm is not None:  # of the data: the task's other tensors do not change
            import torch

            torch.embedding_renorm_(table.data, input.contiguous(), self.max_norm, self.norm_type)
        frequent = self.scale_grad_by_freq
        return F.embedding(input, table, self.padding_idx, scale_grad_by_freq=frequent)

    def rows_given(self, leaves: Any, rows: Tensor) -> list[int | None]:
        return [self.rows_in(x.unsqueeze(-1), rows) for x in leaves]
