"""Norm layers whose scales, shifts and statistics each task has for itself."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.nn.layer import Layer
from superpose.nn.selection import Selected


class NormLayer(Layer):
    """No weight is bound: what a norm layer learns is too small to be superposed."""

    def bound(self) -> dict[str, tuple[int, int]]:
        """No weight."""
        return {}

    def own(self, selected: Selected, *names: str) -> list[Tensor | None]:
        """The task's tensors of these names, or the layer's if they are shared."""
        return [selected.private.get(name, getattr(self, name, None)) for name in names]


class ChannelNorm(NormLayer):
    """Norms with a scale and a shift for each channel, of x (B, C, …)."""

    def scale(self, y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """y ⊙ weight + bias, either (C,) or (B, C)."""
        tail = [1] * (y.ndim - 2)
        if weight is not None:
            y = y * weight.view(-1, y.shape[1], *tail)
        return y if bias is None else y + bias.view(-1, y.shape[1], *tail)

    def check_rows(self, x: Tensor, rows: int) -> None:
        """Rows come first, as in every layer of channels."""
        if x.ndim < 2 or x.shape[0] != rows:
            raise SuperposeError(
                f"layer {self.layer!r} was given {tuple(x.shape)}, which is not a batch of {rows} "
                "rows: rows of different tasks cannot be told apart; run it once per task instead"
            )

    def check_statistics(self, use_batch: bool) -> None:
        """A row must not depend on the rows beside it."""
        if use_batch:
            raise SuperposeError(
                f"layer {self.layer!r} normalises by the statistics of the batch, so rows of "
                "different tasks would change each other: call model.eval() (with running "
                "statistics), run each task by itself, or use a GroupNorm"
            )


class BatchNorm(ChannelNorm, nn.modules.batchnorm._BatchNorm):
    """Batch norm; rows of different tasks need running statistics, and evaluation mode."""

    def forward(self, input: Tensor) -> Tensor:
        """As the plain layer does, with the task's tensors."""
        selected, rows = self.selected()
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        weight, bias, mean, variance, count = self.own(
            selected, "weight", "bias", "running_mean", "running_var", "num_batches_tracked"
        )
        use_batch = self.training or mean is None or variance is None
        if rows is not None:
            self.check_rows(input, rows)
            self.check_statistics(use_batch)
            assert mean is not None
            assert variance is not None
            inverse = (variance + self.eps).rsqrt()
            return self.scale(self.scale(input, inverse, -mean * inverse), weight, bias)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and count is not None:
            count.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(count)
        tracked = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            mean if tracked else None,
            variance if tracked else None,
            weight,
            bias,
            use_batch,
            momentum,
            self.eps,
        )


class BatchNorm1d(BatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` for each task."""


class BatchNorm2d(BatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` for each task."""


class BatchNorm3d(BatchNorm, nn.BatchNorm3d):
    """`nn.BatchNorm3d` for each task."""


class GroupNorm(ChannelNorm, nn.GroupNorm):
    """`nn.GroupNorm` for each task."""

    def forward(self, input: Tensor) -> Tensor:
        """As the plain layer does, with the task's tensors."""
        selected, rows = self.selected()
        weight, bias = self.own(selected, "weight", "bias")
        if rows is None:
            return F.group_norm(input, self.num_groups, weight, bias, self.eps)
        self.check_rows(input, rows)
        return self.scale(F.group_norm(input, self.num_groups, eps=self.eps), weight, bias)


class InstanceNorm(ChannelNorm, nn.modules.instancenorm._InstanceNorm):
    """Instance norm by the statistics of each row; running statistics stay shared."""

    def forward(self, input: Tensor) -> Tensor:
        """As the plain layer does, with the task's scale and shift."""
        selected, rows = self.selected()
        weight, bias = self.own(selected, "weight", "bias")
        unbatched: int = self._get_no_batch_dim()  # type: ignore[no-untyped-call]
        batched = input.unsqueeze(0) if input.ndim == unbatched else input
        if rows is not None:
            self.check_rows(input, rows)
        y = F.instance_norm(
            batched,
            self.running_mean,
            self.running_var,
            None if rows else weight,
            None if rows else bias,
            self.training or not self.track_running_stats,
            self.momentum or 0.0,
            self.eps,
        )
        y = self.scale(y, weight, bias) if rows else y
        return y if batched is input else y.squeeze(0)


class InstanceNorm1d(InstanceNorm, nn.InstanceNorm1d):
    """`nn.InstanceNorm1d` for each task."""


class InstanceNorm2d(InstanceNorm, nn.InstanceNorm2d):
    """`nn.InstanceNorm2d` for each task."""


class InstanceNorm3d(InstanceNorm, nn.InstanceNorm3d):
    """`nn.InstanceNorm3d` for each task."""


class LastDimNorm(NormLayer):
    """Norms over the last dimensions, with a scale (and a shift) for each entry of them."""

    normalized_shape: tuple[int, ...]
    eps: Any

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """The plain layer with other tensors."""
        raise NotImplementedError

    def superposed(self, x: Tensor) -> Tensor:
        """As the plain layer does, with the task's tensors."""
        selected, rows = self.selected()
        weight, bias = self.own(selected, "weight", "bias")
        if rows is None:
            return self.normalise(x, weight, bias)
        y = self.normalise(x, None, None)
        if weight is None:
            return y
        scale = self.spread(weight, x, rows)
        return y * scale if bias is None else torch.addcmul(self.spread(bias, x, rows), y, scale)


class LayerNorm(LastDimNorm, nn.LayerNorm):
    """`nn.LayerNorm` for each task."""

    def forward(self, input: Tensor) -> Tensor:
        """PyTorch names the argument so."""
        return self.superposed(input)

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """(x − mean) / deviation ⊙ weight + bias."""
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(LastDimNorm, nn.RMSNorm):
    """`nn.RMSNorm` for each task."""

    def forward(self, x: Tensor) -> Tensor:
        """PyTorch names the argument so."""
        return self.superposed(x)

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """X / root mean square ⊙ weight."""
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)
