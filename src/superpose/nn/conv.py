"""Convolutions in superposition: the kernel is bound, or the input's channels."""

from math import prod
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from superpose import functional
from superpose.contexts import Context
from superpose.nn.binding import bound_weight
from superpose.nn.centring import ROWS, shifted
from superpose.nn.gate import opened, unmoved
from superpose.nn.layer import Layer
from superpose.nn.observing import observe
from superpose.nn.quantised import full
from superpose.nn.reading import of_active_task
from superpose.nn.selection import Selected, TaskIds
from superpose.nn.standalone import standalone

Size = list[int] | None  # of the output that is wanted


class ConvLayer(Layer):
    """Binds the kernel, one context entry per (input channel, kernel position), as the paper does.

    With `mode="channel"` it binds the input's channels instead: a context of fewer entries, and
    cheaper for rows of many tasks, which in kernel mode are convolved each with a kernel of its
    own, all in one grouped convolution.
    """

    conversion_settings = ("mode",)
    weight: Any = of_active_task("weight")
    bias: Any = of_active_task("bias")
    groups: int
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    mode: str
    padding_mode: Any
    _reversed_padding_repeated_twice: Any
    _output_padding: Any

    def bound(self) -> dict[str, tuple[int, int]]:
        """All of the kernel that meets one output, or the channels; each group by itself."""
        channels = self.in_channels // self.groups
        positions = prod(self.kernel_size) if self.mode == "kernel" else 1
        return {"weight": (channels * positions, self.groups)}

    def to_blocks(self, weight: Tensor) -> Tensor:
        """The kernel as (groups, outputs, inputs, positions); leading dimensions stay."""
        raise NotImplementedError

    def from_blocks(self, blocks: Tensor) -> Tensor:
        """The inverse of `to_blocks`; leading dimensions stay."""
        raise NotImplementedError

    def to_matrix(self, name: str, weight: Tensor) -> Tensor:
        """The kernel with what is bound last, groups apart if there are several."""
        blocks = self.to_blocks(weight)
        by_channel = self.mode == "channel"  # outputs and positions, then inputs
        matrix = blocks.mT.flatten(-3, -2) if by_channel else blocks.flatten(-2)
        return matrix.squeeze(-3) if self.groups == 1 else matrix

    def from_matrix(self, name: str, matrix: Tensor) -> Tensor:
        """The inverse of `to_matrix`; leading dimensions stay."""
        grouped = matrix.unsqueeze(-3) if self.groups == 1 else matrix
        positions = prod(self.kernel_size)
        if self.mode == "channel":
            blocks = grouped.unflatten(-2, (-1, positions)).transpose(-1, -2)
        else:
            blocks = grouped.unflatten(-1, (-1, positions))
        return self.from_blocks(blocks)

    def convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, size: Size
    ) -> Tensor:
        """The plain convolution with another kernel, bias and number of groups."""
        raise NotImplementedError

    def superposed(self, x: Tensor, task: TaskIds | None, size: Size = None) -> Tensor:
        """(W C(k)) ∗ x + b; `size` is that of a transposed convolution's output."""
        selected, rows = self.selected(task)
        weight = full(selected.private.get("weight", self.stored("weight")))
        bias = selected.private.get("bias", self.stored("bias"))
        context = selected.contexts.get("weight")
        x = functional.complex_like(x, weight)
        spatial = len(self.kernel_size)
        observe(self, selected, self.features_last(x), rows)
        if rows is None:
            if context is not None:
                weight = bound_weight(self, selected, "weight")
            bias = shifted(self, selected, bias)
            return self.convolve(x, weight, bias, self.groups, size)
        self.check_rows(x, rows, spatial + 2)
        y = self.by_row(selected, x, weight, rows, size)
        own = shifted(self, selected, bias, rows)
        if own is None:
            return y
        return y + own.to(y.dtype).view(-1, self.out_channels, *[1] * spatial)

    def by_row(
        self, selected: Selected, x: Tensor, weight: Tensor, rows: int, size: Size
    ) -> Tensor:
        """The same without a bias, each row by its own context, or by a kernel of its own."""
        context, base = selected.contexts.get("weight"), self.bases.get("weight")
        shared = weight.ndim == self.stored("weight").ndim
        if context is None and shared:
            return self.convolve(x, weight, None, self.groups, size)
        low_rank = selected.low_rank("weight") is not None
        rows_centred = self.centre == ROWS
        apart = context is not None and shared and not low_rank and not rows_centred
        if apart and context is not None and self.mode == "channel":
            bound = self.bind_channels(context, unmoved(x, selected.closed))
            y = self.convolve(bound, weight, None, self.groups, size)
        elif apart and context is not None and self.has_few_patches(x):
            y = self.by_patches(context, unmoved(x, selected.closed), weight)
        else:
            own = weight if context is None else bound_weight(self, selected, "weight", rows)
            return self.convolve_each(x, own, rows, size)
        y = opened(y, selected.closed)
        return y if base is None else y + self.convolve(x, full(base), None, self.groups, size)

    def convolve_each(self, x: Tensor, weight: Tensor, rows: int, size: Size) -> Tensor:
        """Each row with a kernel of its own, (rows, *W.shape), as one grouped convolution."""
        side_by_side, groups = x.flatten(0, 1).unsqueeze(0), rows * self.groups
        y = self.convolve(side_by_side, weight.flatten(0, 1), None, groups, size)
        return y.view(rows, -1, *y.shape[2:])

    def features_last(self, x: Tensor) -> Tensor:
        """Channels last; an image without a batch is a batch of one."""
        batch = x if x.ndim > len(self.kernel_size) + 1 else x.unsqueeze(0)
        return batch.movedim(1, -1)

    def input_features(self, name: str) -> int:
        """One mean for each channel."""
        return self.in_channels

    def mean_inputs(self, mean: Tensor) -> Tensor:
        """The mean at every position of the kernel."""
        positions = prod(self.kernel_size) if self.mode == "kernel" else 1
        inputs = mean.repeat_interleave(positions, -1)
        return inputs if self.groups == 1 else inputs.unflatten(-1, (self.groups, -1))

    def summed(self, response: Tensor) -> Tensor:
        """Over the positions, which are outputs of their own where channels are bound."""
        if self.mode == "kernel":
            return response
        return response.unflatten(-1, (-1, prod(self.kernel_size))).sum(-1)

    def has_few_patches(self, x: Tensor) -> bool:
        """Whether binding what the kernel meets takes less memory than a kernel for each row."""
        return False

    def by_patches(self, context: Context, x: Tensor, weight: Tensor) -> Tensor:
        """W C(k) on every patch of x that the kernel meets, each row by its own context."""
        raise NotImplementedError

    def bind_channels(self, context: Context, x: Tensor) -> Tensor:
        """C(k) on the channels of x (rows, channels, …), each row and group by its own."""
        grouped = x.flatten(2).unflatten(1, (self.groups, -1)).flatten(0, 1).mT  # (B · g, N, M)
        if self.groups > 1:
            context = context.map(lambda tensor: tensor.flatten(0, 1))
        bound = context.by_row().bind(grouped).mT
        return bound.reshape(x.shape)


class ForwardConv(ConvLayer):
    """Kernels (outputs, inputs / groups, …)."""

    is_linear_map = True
    has_input_mean = True
    has_complex_form = True

    def to_blocks(self, weight: Tensor) -> Tensor:
        """Outputs come first already."""
        return weight.flatten(-len(self.kernel_size)).unflatten(-3, (self.groups, -1))

    def from_blocks(self, blocks: Tensor) -> Tensor:
        """Groups join the outputs again."""
        return blocks.flatten(-4, -3).unflatten(-1, self.kernel_size)

    def forward(self, input: Tensor, task: TaskIds | None = None) -> Tensor:
        """The convolution, and the argument's name, of PyTorch's layer."""
        return self.superposed(input, task)

    def has_few_patches(self, x: Tensor) -> bool:
        """Fewer than outputs; PyTorch takes patches of images, real ones, with zeros around."""
        taken = len(self.kernel_size) == 2 and self.groups == 1 and not x.is_complex()
        if not taken or self.padding_mode != "zeros" or isinstance(self.padding, str):
            return False
        return prod(self._output_sizes(x)) < self.out_channels

    def by_patches(self, context: Context, x: Tensor, weight: Tensor) -> Tensor:
        """One product for all rows and places."""
        size: Any = self.kernel_size
        patches = F.unfold(x, size, self.dilation, self.padding, self.stride)  # type: ignore[arg-type]
        bound = context.by_row().bind(patches.mT)  # (rows, places, channels · positions)
        y = functional.linear(bound, weight.flatten(1)).mT
        return y.reshape(*y.shape[:2], *self._output_sizes(x))

    def _output_sizes(self, x: Tensor) -> list[int]:
        layer: Any = self
        options = zip(self.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True)
        return [
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, (kernel, stride, padding, dilation) in zip(x.shape[2:], options, strict=True)
        ]

    def convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, size: Size
    ) -> Tensor:
        """With the layer's padding mode, stride and dilation."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        function: Any = (F.conv1d, F.conv2d, F.conv3d)[len(self.kernel_size) - 1]
        return function(x, weight, bias, self.stride, padding, self.dilation, groups)


class TransposedConv(ConvLayer):
    """Kernels (inputs, outputs / groups, …)."""

    def to_blocks(self, weight: Tensor) -> Tensor:
        """Inputs come first: they change places with the outputs."""
        blocks = weight.flatten(-len(self.kernel_size)).unflatten(-3, (self.groups, -1))
        return blocks.transpose(-3, -2)

    def from_blocks(self, blocks: Tensor) -> Tensor:
        """Inputs come first again, and groups join them."""
        return blocks.transpose(-3, -2).flatten(-4, -3).unflatten(-1, self.kernel_size)

    def dims_of_inputs(self, name: str) -> tuple[int, ...]:
        """All but the second, where the outputs are.

        With groups, the second is of several outputs, one of each group, and a row is of one group.
        """
        if self.groups > 1:
            return super().dims_of_inputs(name)
        return (0, *range(2, self.stored(name).ndim))

    def forward(
        self, input: Tensor, output_size: Size = None, task: TaskIds | None = None
    ) -> Tensor:
        """The convolution, and the arguments' names, of PyTorch's layer."""
        return self.superposed(input, task, output_size)

    def convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, size: Size
    ) -> Tensor:
        """With the layer's stride, padding and dilation, and the output size wanted."""
        padding: Any = self._output_padding(
            x,
            size,
            self.stride,
            self.padding,
            self.kernel_size,
            len(self.kernel_size),
            self.dilation,
        )
        functions = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
        function: Any = functions[len(self.kernel_size) - 1]
        return function(x, weight, bias, self.stride, self.padding, padding, groups, self.dilation)


class Conv1d(ForwardConv, nn.Conv1d):
    """`nn.Conv1d` with a context for each task."""

    __init__ = standalone(nn.Conv1d, mode="kernel")


class Conv2d(ForwardConv, nn.Conv2d):
    """`nn.Conv2d` with a context for each task.

    >>> import torch
    >>> layer = Conv2d(3, 8, 3, padding=1, family="phase")
    >>> layer(torch.ones(2, 3, 5, 5), task=[0, 4]).shape
    torch.Size([2, 8, 5, 5])
    """

    __init__ = standalone(nn.Conv2d, mode="kernel")


class Conv3d(ForwardConv, nn.Conv3d):
    """`nn.Conv3d` with a context for each task."""

    __init__ = standalone(nn.Conv3d, mode="kernel")


class ConvTranspose1d(TransposedConv, nn.ConvTranspose1d):
    """`nn.ConvTranspose1d` with a context for each task."""

    __init__ = standalone(nn.ConvTranspose1d, mode="kernel")


class ConvTranspose2d(TransposedConv, nn.ConvTranspose2d):
    """`nn.ConvTranspose2d` with a context for each task."""

    __init__ = standalone(nn.ConvTranspose2d, mode="kernel")


class ConvTranspose3d(TransposedConv, nn.ConvTranspose3d):
    """`nn.ConvTranspose3d` with a context for each task."""

    __init__ = standalone(nn.ConvTranspose3d, mode="kernel")
