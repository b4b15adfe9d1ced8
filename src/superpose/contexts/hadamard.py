"""hadamard: random signs, a Walsh-Hadamard transform, random signs: a fast rotation."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from superpose import functional, keys
from superpose.contexts.base import Context, Drawn, register_context
from superpose.contexts.binary import Signs
from superpose.keys import Key


@register_context
@dataclass(frozen=True, eq=False)
class SignedHadamard(Context):
    """C = diag(left) · H · diag(right), H symmetric and orthogonal."""

    left: Signs
    right: Signs

    def bind(self, x: Tensor) -> Tensor:
        """Left ⊙ H (right ⊙ x)."""
        return self.left.bind(functional.hadamard(self.right.bind(x)))

    def transpose(self) -> Context:
        """diag(right) · H · diag(left)."""
        return SignedHadamard(self.right, self.left)

    def inverse(self) -> Context:
        """diag(right)⁻¹ · H · diag(left)⁻¹."""
        return SignedHadamard(self.right.inverse(), self.left.inverse())


@dataclass(frozen=True)
class Hadamard(Drawn):
    """Mixes all coordinates like a rotation, in O(M log M): 2M signs a task."""

    effort: ClassVar[int] = 3

    def draw(self, key: Key, dim: int) -> Tensor:
        """2 × M signs."""
        return torch.from_numpy(keys.signs(key, 2 * dim)).view(2, dim)

    def make(self, numbers: Tensor) -> Context:
        """The transform between the two rows of signs."""
        left, right = numbers.unbind(-2)
        return SignedHadamard(Signs(left), Signs(right))

    def moments(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(0, Σᵢⱼ wᵢ² (H² H²)ᵢⱼ xⱼ²) with H² squared by entry; ‖w‖²‖x‖²/M for a power of two."""
        dim = w.shape[-1]
        if dim & (dim - 1) == 0:
            variance = w.square().sum(-1) * x.square().sum(-1) / dim
        else:
            squared = functional.hadamard(torch.eye(dim, dtype=w.dtype, device=w.device)).square()
            variance = (w.square() @ squared @ squared * x.square()).sum(-1)
        return torch.zeros_like(variance), variance
