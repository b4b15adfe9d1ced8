"""Convolutions: the kernel is bound, or the input's channels."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from superpose import functional
from superpose.nn.layer import Layer, Met, opened
from superpose.nn.layout import Kernel, Layout
from superpose.nn.quantised import full
from superpose.nn.view import LayerView

if TYPE_CHECKING:
    from superpose.contexts import Context
    from superpose.nn.options import Options

PLACES = 8  # of each dimension that are drawn to solve for a kernel: neighbours tell much the same


class Conv(Layer):
    """`nn.Conv1d`, `2d` and `3d`. One task, and each row by itself, runs the plain layer."""

    has_complex_form = True
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    _conv_forward: Any
    _reversed_padding_repeated_twice: Any

    @classmethod
    def layouts(cls, module: Any, options: Options) -> dict[str, Layout]:
        return {
            "weight": Kernel(
                module.groups, tuple(module.kernel_size), options.conv, module.transposed
            )
        }

    def input_features(self, name: str) -> int:
        return self.in_channels

    def features_last(self, x: Tensor) -> Tensor:
        return (x if x.ndim > len(self.kernel_size) + 1 else x.unsqueeze(0)).movedim(1, -1)

    def is_linear_map(self, name: str) -> bool:
        return True

    def inputs_of(self, name: str, plain: Any, inputs: Any, options: Any, seed: int) -> list[Met]:
        x = inputs[0] if inputs else next(iter(options.values()))
        return [Met(slice(None), patches(self, x, seed))]

    def forward(self, input: Tensor) -> Tensor:
        weight = self._parameters["weight"]
        if weight is not None and weight.is_complex():
            input = functional.complex_like(input, weight)
        y: Tensor = super().forward(input)
        return y

    def by_row(self, own: LayerView, rows: Tensor, x: Tensor) -> Tensor:
        """Bind the input, where that is the least work, else convolve each row by its own kernel.

        Kernels of all rows are one convolution of rows · groups groups.
        """
        if x.ndim != len(self.kernel_size) + 2 or x.shape[0] != rows.shape[0]:
            raise self.not_direct(
                f"is given {tuple(x.shape)}, in which it cannot tell the {len(rows)} rows"
            )
        given = x
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode), 0
        else:
            padding = self.padding
        by_input = bool(own.contexts) and not self.acts.matrix and not self.acts.bias
        y = self._bind_input(own, x, padding) if by_input else None
        bias = self.read("bias", own) if y is not None or not own.contexts else None
        if y is None and ("weight" in own.tensors or own.contexts):
            alone = own._replace(each=())
            if tree_leaves(alone):
                kernels, shift = torch.vmap(self._read_row)(alone)
            else:  # contexts that are the identity, and nothing private
                kernels, shift = (t.expand(x.shape[0], *t.shape) for t in self._read_row(alone))
            bias = bias if shift.shape[-1] == 0 else shift
            side_by_side = x.flatten(0, 1).unsqueeze(0)
            y = self._convolve(
                side_by_side, kernels.flatten(0, 1), padding, x.shape[0] * self.groups
            )
            y = y.view(x.shape[0], -1, *y.shape[2:])
        elif y is None:  # a frozen kernel, and a private bias
            y = self._convolve(x, full(self.stored("weight")), padding, self.groups)
        if self.training and self.acts.note:
            self.note(own, given, rows)
        if bias is None:
            return y
        return y + bias.to(y.dtype).view(*bias.shape, *[1] * len(self.kernel_size))

    def _read_row(self, own: LayerView) -> tuple[Tensor, Tensor]:
        """The kernel and the bias of one row; no numbers if there is no bias."""
        weight, bias = self.read("weight", own), self.read("bias", own)
        return weight, weight.new_empty(0) if bias is None else bias

    def _convolve(self, x: Tensor, weight: Tensor, padding: Any, groups: int) -> Tensor:
        function: Any = (F.conv1d, F.conv2d, F.conv3d)[len(self.kernel_size) - 1]
        y: Tensor = function(x, weight, None, self.stride, padding, self.dilation, groups)
        return y

    def _bind_input(self, own: LayerView, x: Tensor, padding: Any) -> Tensor | None:
        """W₀x + W·C(k)·x on channels, or on the patches that the kernel meets, if few."""
        context, weight = own.contexts["weight"], full(self.stored("weight"))
        if self.bound["weight"].layout.mode == "channel":  # type: ignore[attr-defined]
            y = self._convolve(self._bind_channels(context, x), weight, padding, self.groups)
        else:
            sizes = self._sizes(x, padding)
            if sizes is None or prod(sizes) >= self.out_channels:
                return None
            found = F.unfold(x, self.kernel_size, self.dilation, padding, self.stride).mT
            y = F.linear(context.by_row().bind(found), weight.flatten(1)).mT
            y = y.reshape(*y.shape[:2], *sizes)
        y = opened(y, own.gate)
        base = self.base("weight")
        return y if base is None else y + self._convolve(x, full(base), padding, self.groups)

    def _sizes(self, x: Tensor, padding: Any) -> list[int] | None:
        """Of the output of a convolution whose patches PyTorch takes: images, real, one group."""
        if (
            len(self.kernel_size) != 2
            or self.groups > 1
            or x.is_complex()
            or isinstance(padding, str)
        ):
            return None
        padding = (padding, padding) if isinstance(padding, int) else padding
        options = zip(
            x.shape[2:], self.kernel_size, self.stride, padding, self.dilation, strict=True
        )
        return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in options]

    def _bind_channels(self, context: Context, x: Tensor) -> Tensor:
        if self.groups > 1:
            context = context.map(lambda t: t.flatten(0, 1))
        grouped = x.flatten(2).unflatten(1, (self.groups, -1)).flatten(0, 1).mT
        return context.by_row().bind(grouped).mT.reshape(x.shape)


class TransposedConv(Layer):
    """`nn.ConvTranspose1d`, `2d` and `3d`."""

    @classmethod
    def layouts(cls, module: Any, options: Options) -> dict[str, Layout]:
        return {"weight": Kernel(module.groups, tuple(module.kernel_size), options.conv, True)}


def patches(layer: Any, x: Tensor, seed: int) -> Tensor:
    """What a convolution multiplies its kernel with: (groups, rows · places, channels · positions).

    >>> patches(torch.nn.Conv1d(1, 1, 2), torch.tensor([[[1.0, 2.0, 3.0]]]), seed=0)
    tensor([[[1., 2.],
             [2., 3.]]])
    """
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        padding = layer._reversed_padding_repeated_twice
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = F.pad(x, padding, mode=mode)
    else:
        x = F.pad(x, [size for size in reversed(layer.padding) for _ in range(2)])
    spatial = len(layer.kernel_size)
    generator = torch.Generator().manual_seed(seed)
    for dim in range(spatial):
        size, dilation = layer.kernel_size[dim], layer.dilation[dim]
        x = x.unfold(2 + dim, dilation * (size - 1) + 1, layer.stride[dim])[..., ::dilation]
        places = x.shape[2 + dim]
        if places > PLACES:
            drawn = torch.randperm(places, generator=generator)[:PLACES].sort().values
            x = x.index_select(2 + dim, drawn.to(x.device))
    # (B, C, places…, positions…) → (groups, B · places, C / groups · positions)
    x = x.flatten(2 + spatial).flatten(2, 1 + spatial).unflatten(1, (layer.groups, -1))
    return x.permute(1, 0, 3, 2, 4).flatten(1, 2).flatten(2)
