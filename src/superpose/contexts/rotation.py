"""rotation and block-rotation: C(k) drawn uniformly (Haar) from an orthogonal group."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from superpose import functional, keys
from superpose.contexts.base import Context, Drawn, register_context
from superpose.errors import SuperposeError
from superpose.keys import Key


@register_context
@dataclass(frozen=True, eq=False)
class Rotated(Context):
    """C = matrix, orthogonal."""

    matrix: Tensor

    def bind(self, x: Tensor) -> Tensor:
        """Matrix times x."""
        return functional.rotate(x, self.matrix)

    def transpose(self) -> Context:
        """The transposed matrix."""
        return Rotated(self.matrix.mT)

    def inverse(self) -> Context:
        """A rotation's inverse is its transpose."""
        return self.transpose()


@register_context
@dataclass(frozen=True, eq=False)
class Blocks(Context):
    """C = a diagonal of orthogonal blocks."""

    blocks: Tensor

    def bind(self, x: Tensor) -> Tensor:
        """Each block times its part of x."""
        return functional.rotate_blocks(x, self.blocks)

    def transpose(self) -> Context:
        """Each block transposed."""
        return Blocks(self.blocks.mT)

    def inverse(self) -> Context:
        """A rotation's inverse is its transpose."""
        return self.transpose()


@dataclass(frozen=True)
class Rotation(Drawn):
    """Any rotation: M² numbers a task, the least crosstalk, the highest price."""

    effort: ClassVar[int] = 12

    def draw(self, key: Key, dim: int) -> Tensor:
        """M × M normals."""
        return torch.from_numpy(keys.normals(key, dim * dim)).view(dim, dim)

    def make(self, numbers: Tensor) -> Context:
        """Their orthogonal factor."""
        return Rotated(functional.orthogonalise(numbers))

    def moments(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(0, ‖w‖²‖x‖²/M)."""
        variance = w.square().sum(-1) * x.square().sum(-1) / w.shape[-1]
        return torch.zeros_like(variance), variance


@dataclass(frozen=True)
class BlockRotation(Drawn):
    """Rotations of blocks of coordinates: M · block_size numbers a task."""

    block_size: int = 16

    def __post_init__(self) -> None:
        """Check the block size once, here."""
        if self.block_size < 1:
            raise SuperposeError(f"block_size={self.block_size}: use a whole number of at least 1")

    def draw(self, key: Key, dim: int) -> Tensor:
        """⌈M/b⌉ blocks of b × b normals; what reaches past M is the identity."""
        size = self.block_size
        count = -(-dim // size)
        numbers = torch.from_numpy(keys.normals(key, count * size * size)).view(count, size, size)
        if rest := dim % size:
            if self.learnable:
                raise SuperposeError(
                    f"a learnable block-rotation of {dim} coordinates needs a block_size that "
                    f"divides {dim}; {size} does not"
                )
            numbers[-1, rest:], numbers[-1, :, rest:] = 0.0, 0.0
            numbers[-1].diagonal()[rest:] = 1.0
        return numbers

    def make(self, numbers: Tensor) -> Context:
        """Their orthogonal factors."""
        return Blocks(functional.orthogonalise(numbers))

    def moments(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(0, Σ over blocks ‖w‖²‖x‖²/b)."""
        size, dim = self.block_size, w.shape[-1]
        rest = -dim % size
        squares = [F.pad(v.square(), (0, rest)).unflatten(-1, (-1, size)).sum(-1) for v in (w, x)]
        sizes = w.new_full((squares[0].shape[-1],), size)
        sizes[-1] = size - rest
        variance = (squares[0] * squares[1] / sizes).sum(-1)
        return torch.zeros_like(variance), variance
