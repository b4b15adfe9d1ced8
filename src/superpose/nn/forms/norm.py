"""Norms: nothing is bound; scales, shifts and statistics are each task's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose.nn.layer import Layer
from superpose.nn.view import LayerView, View, viewing


class Norm(Layer):
    """A norm that maps the pass of one row, whatever its class computes."""

    binds = False

    @classmethod
    def statistics(cls, module: nn.Module) -> list[str]:
        return [name for name, buffer in module._buffers.items() if buffer is not None]

    def scaled(self, own: LayerView, y: Tensor, dim: int, channels: bool) -> Tensor:
        """y times the scale and plus the shift of each row, along channels or last dimensions."""
        for name, act in (("weight", torch.mul), ("bias", torch.add)):
            tensor = own.tensors.get(name, self.stored(name) if name in self._parameters else None)
            if tensor is None:
                continue
            if name in own.tensors and channels:
                tensor = tensor.view(*tensor.shape, *[1] * (y.ndim - 2))
            elif name in own.tensors:
                between = [1] * (y.ndim - tensor.ndim)
                tensor = tensor.view(tensor.shape[0], *between, *tensor.shape[1:]).movedim(0, dim)
            elif channels:
                tensor = tensor.view(-1, *[1] * (y.ndim - 2))
            y = act(y, tensor)
        return y


class LayerNorm(Norm):
    normalized_shape: tuple[int, ...]
    eps: float

    def by_row(self, own: LayerView, rows: Tensor, input: Tensor) -> Tensor:
        dim = self.rows_in(input, rows, len(self.normalized_shape))
        y = F.layer_norm(input, self.normalized_shape, None, None, self.eps)
        return self.scaled(own, y, dim, channels=False).to(input.dtype)


class RMSNorm(Norm):
    normalized_shape: tuple[int, ...]
    eps: float

    def by_row(self, own: LayerView, rows: Tensor, x: Tensor) -> Tensor:
        dim = self.rows_in(x, rows, len(self.normalized_shape))
        y = F.rms_norm(x, self.normalized_shape, None, self.eps)
        return self.scaled(own, y, dim, channels=False).to(x.dtype)


class ChannelNorm(Norm):
    """Norms of x (rows, channels, …)."""

    def check_rows(self, x: Tensor, rows: Tensor) -> None:
        if x.ndim < 2 or x.shape[0] != rows.shape[0]:
            raise self.not_direct(
                f"is given {tuple(x.shape)}, in which it cannot tell the {len(rows)} rows"
            )


class GroupNorm(ChannelNorm):
    num_groups: int
    eps: float

    def by_row(self, own: LayerView, rows: Tensor, input: Tensor) -> Tensor:
        self.check_rows(input, rows)
        y = F.group_norm(input, self.num_groups, None, None, self.eps)
        return self.scaled(own, y, 0, channels=True).to(input.dtype)


class BatchNorm(ChannelNorm):
    """Statistics are taken over the rows of a task: in training, and always if none are kept."""

    running_mean: Tensor | None
    eps: float
    _check_input_dim: Any

    def runs_by_task(self) -> bool:
        return self.training or self.stored("running_mean") is None

    def by_row(self, own: LayerView, rows: Tensor, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        self.check_rows(input, rows)
        return self.standardised(own, input)

    def standardised(self, own: LayerView, input: Tensor) -> Tensor:
        """The input by the running statistics of each row's task: rows · channels as channels."""
        every = (
            own.tensors.get(name, kept.get(name))
            for name, kept in (
                ("running_mean", self._buffers), ("running_var", self._buffers),
                ("weight", self._parameters), ("bias", self._parameters),
            )
        )  # fmt: skip
        by_channel: Any = (
            None if t is None else t.expand(input.shape[:2]).reshape(-1) for t in every
        )
        folded = input.reshape(1, -1, *input.shape[2:])
        mean, variance, weight, bias = by_channel
        y = F.batch_norm(folded, mean, variance, weight, bias, eps=self.eps)
        return y.view(input.shape)


class InstanceNorm(BatchNorm):
    """Statistics of each row, or running ones."""

    def runs_by_task(self) -> bool:
        return self.training and self.stored("running_mean") is not None

    def by_row(self, own: LayerView, rows: Tensor, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        self.check_rows(input, rows)
        if self.stored("running_mean") is not None:
            return self.standardised(own, input)
        return self.scaled(own, F.instance_norm(input, eps=self.eps), 0, channels=True).to(
            input.dtype
        )


class SpreadNorm(Norm):
    """Norms of `transformers`, y = weight · f(x), which take a weight for each row."""

    def by_row(self, own: LayerView, rows: Tensor, *inputs: Any, **options: Any) -> Tensor:
        x = inputs[0] if inputs else next(iter(options.values()))
        dim = self.rows_in(x, rows)
        spread = {
            name: t.view(t.shape[0], *[1] * (x.ndim - 2), -1).movedim(0, dim)
            for name, t in own.tensors.items()
        }
        with viewing(View({self.path: LayerView({}, spread)}), self.home):
            y: Tensor = super(Layer, self).forward(*inputs, **options)
        return y


class ComplexNorm(ChannelNorm):
    """`ComplexBatchNorm`."""

    normalise: Any

    def runs_by_task(self) -> bool:
        return self.training or self.stored("running_mean") is None

    def by_row(self, own: LayerView, rows: Tensor, input: Tensor) -> Tensor:
        self.check_rows(input, rows)
        names = ("weight", "bias", "running_mean", "running_covariance", "num_batches_tracked")
        y: Tensor = self.normalise(
            input, *(own.tensors.get(name, self.stored(name)) for name in names)
        )
        return y
