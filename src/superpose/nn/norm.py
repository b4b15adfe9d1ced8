"""Norm layers whose scales, shifts and statistics each task has for itself."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose.nn.layer import Layer
from superpose.nn.reading import of_active_task
from superpose.nn.selection import Selected

AFFINE = ("weight", "bias")
STATISTICS = ("running_mean", "running_var")


class NormLayer(Layer):
    """No weight is bound: what a norm layer learns is too small to be superposed."""

    binds_weights = False
    weight: Any = of_active_task("weight")
    bias: Any = of_active_task("bias")

    def bound(self) -> dict[str, tuple[int, int]]:
        """No weight."""
        return {}

    def running_statistics(self) -> list[str]:
        """All of its buffers."""
        return list(dict(self.named_buffers(recurse=False)))

    def own(self, selected: Selected, *names: str) -> list[Tensor | None]:
        """The task's tensors of these names, or the layer's if they are shared."""
        own = selected.private
        return [own[name] if name in own else getattr(self, name, None) for name in names]


class ChannelNorm(NormLayer):
    """Norms with a scale and a shift for each channel, of x (B, C, …)."""

    def scale(self, y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """y ⊙ weight + bias, either (C,) or (B, C)."""
        tail = [1] * (y.ndim - 2)
        if weight is not None:
            y = y * weight.view(-1, y.shape[1], *tail)
        return y if bias is None else y + bias.view(-1, y.shape[1], *tail)


class TrackedNorm(ChannelNorm, nn.modules.batchnorm._NormBase):
    """Norms that may keep running statistics; rows of different tasks cannot change them."""

    def forward(self, input: Tensor) -> Tensor:
        """As the plain layer does, with the task's tensors."""
        selected, rows = self.selected()
        if rows is None:
            return self.plain_forward(selected, input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        self.check_rows(input, rows)
        weight, bias, mean, variance = self.own(selected, *AFFINE, *STATISTICS)
        if mean is None or variance is None:
            y = F.instance_norm(input, eps=self.eps)
        else:
            y = self.standardise(input, mean, variance)
        return self.scale(y, weight, bias).to(input.dtype)

    def standardise(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """(x − mean) / deviation, with statistics (C,) or (B, C)."""
        inverse = (variance + self.eps).rsqrt()
        return self.scale(x, inverse, -mean * inverse)


class BatchNorm(TrackedNorm, nn.modules.batchnorm._BatchNorm):
    """Batch norm; rows of different tasks need running statistics, and evaluation mode."""


class BatchNorm1d(BatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` for each task."""


class BatchNorm2d(BatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` for each task."""


class BatchNorm3d(BatchNorm, nn.BatchNorm3d):
    """`nn.BatchNorm3d` for each task."""


class SyncBatchNorm(BatchNorm, nn.SyncBatchNorm):
    """`nn.SyncBatchNorm` for each task: all processes run the same one."""


class GroupNorm(ChannelNorm, nn.GroupNorm):
    """`nn.GroupNorm` for each task."""

    def forward(self, input: Tensor) -> Tensor:
        """As the plain layer does, with the task's tensors."""
        selected, rows = self.selected()
        weight, bias = self.own(selected, *AFFINE)
        if rows is None:
            return F.group_norm(input, self.num_groups, weight, bias, self.eps)
        self.check_rows(input, rows)
        y = F.group_norm(input, self.num_groups, eps=self.eps)
        return self.scale(y, weight, bias).to(input.dtype)


class InstanceNorm(TrackedNorm, nn.modules.instancenorm._InstanceNorm):
    """Instance norm; rows of different tasks need evaluation mode if statistics are tracked."""


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
        weight, bias = self.own(selected, *AFFINE)
        if rows is None:
            return self.normalise(x, weight, bias)
        if weight is None:
            return self.normalise(x, None, None)
        y, scale = self.normalise(x, None, None), self.spread(weight, x, rows)
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
