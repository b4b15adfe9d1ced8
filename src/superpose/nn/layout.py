"""Layouts: where the inputs of a bound weight lie."""

from __future__ import annotations

from math import prod
from typing import NamedTuple, Protocol

from torch import Tensor


class Layout(Protocol):
    """What binding, packing and projection ask of a bound weight; leading dimensions stay.

    A weight is a *matrix* (…, outputs, inputs) whose inputs are bound, with a dimension of groups
    in front if there are several.
    """

    def inputs(self, weight: Tensor) -> tuple[int, int]:
        """The number of inputs that are bound, of each group, and of groups."""

    def to_matrix(self, weight: Tensor) -> Tensor:
        """The weight with its inputs last."""

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """The inverse of `to_matrix`."""

    def to_blocks(self, weight: Tensor) -> Tensor:
        """The weight as (groups, outputs, features), features being all that meets one output."""

    def from_blocks(self, blocks: Tensor) -> Tensor:
        """The inverse of `to_blocks`."""

    def spread_mean(self, mean: Tensor) -> Tensor:
        """The mean of the layer's input as an input that is bound."""

    def sum_response(self, response: Tensor) -> Tensor:
        """What `to_matrix` gives for such a mean, as one number for each output."""

    def input_dims(self, weight: Tensor) -> tuple[int, ...]:
        """The dimensions of the weight that belong to one output."""


class Along(NamedTuple):
    """Inputs along one dimension, counted from the end: −1 for `x @ W.T`, −2 for `x @ W`.

    Dimensions before these two, such as experts, belong to the outputs.
    """

    dim: int = -1

    def inputs(self, weight: Tensor) -> tuple[int, int]:
        return weight.shape[self.dim], 1

    def to_matrix(self, weight: Tensor) -> Tensor:
        return weight if self.dim == -1 else weight.movedim(self.dim, -1)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        return matrix if self.dim == -1 else matrix.movedim(-1, self.dim)

    def to_blocks(self, weight: Tensor) -> Tensor:
        return self.to_matrix(weight).unsqueeze(0)

    def from_blocks(self, blocks: Tensor) -> Tensor:
        return self.from_matrix(blocks.squeeze(0))

    def spread_mean(self, mean: Tensor) -> Tensor:
        return mean

    def sum_response(self, response: Tensor) -> Tensor:
        return response

    def input_dims(self, weight: Tensor) -> tuple[int, ...]:
        return (self.dim % weight.ndim,)


class Kernel(NamedTuple):
    """Kernels (outputs, inputs / groups, …), or (inputs, outputs / groups, …) if transposed.

    In mode "kernel" a context has an entry for each input channel and position, as in the paper; in
    mode "channel" for each channel, and positions belong to the outputs.
    """

    groups: int
    size: tuple[int, ...]
    mode: str = "kernel"
    transposed: bool = False

    def inputs(self, weight: Tensor) -> tuple[int, int]:
        channels = weight.shape[0] // self.groups if self.transposed else weight.shape[1]
        return channels * (prod(self.size) if self.mode == "kernel" else 1), self.groups

    def to_matrix(self, weight: Tensor) -> Tensor:
        blocks = self._split(weight)
        matrix = blocks.flatten(-2) if self.mode == "kernel" else blocks.mT.flatten(-3, -2)
        return matrix.squeeze(-3) if self.groups == 1 else matrix

    def from_matrix(self, matrix: Tensor) -> Tensor:
        grouped = matrix.unsqueeze(-3) if self.groups == 1 else matrix
        positions = prod(self.size)
        if self.mode == "kernel" or positions == 1:
            return self._join(grouped.unflatten(-1, (-1, positions)))
        return self._join(grouped.unflatten(-2, (-1, positions)).transpose(-1, -2)).contiguous()

    def to_blocks(self, weight: Tensor) -> Tensor:
        return self._split(weight).flatten(-2)

    def from_blocks(self, blocks: Tensor) -> Tensor:
        return self._join(blocks.unflatten(-1, (-1, prod(self.size))))

    def spread_mean(self, mean: Tensor) -> Tensor:
        inputs = mean.repeat_interleave(prod(self.size), -1) if self.mode == "kernel" else mean
        return inputs if self.groups == 1 else inputs.unflatten(-1, (self.groups, -1))

    def sum_response(self, response: Tensor) -> Tensor:
        if self.mode == "kernel":
            return response
        return response.unflatten(-1, (-1, prod(self.size))).sum(-1)

    def input_dims(self, weight: Tensor) -> tuple[int, ...]:
        if self.transposed and self.groups == 1:
            return (0, *range(2, weight.ndim))
        return tuple(range(1, weight.ndim))

    def _split(self, weight: Tensor) -> Tensor:
        """(groups, outputs, inputs, positions)."""
        blocks = weight.flatten(-len(self.size)).unflatten(-3, (self.groups, -1))
        return blocks.transpose(-3, -2) if self.transposed else blocks

    def _join(self, blocks: Tensor) -> Tensor:
        whole = blocks.transpose(-3, -2) if self.transposed else blocks
        return whole.flatten(-4, -3).unflatten(-1, self.size)
