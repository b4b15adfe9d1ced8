"""binary: C(k) = diag(±1), M signs a task. The paper's workhorse."""

from dataclasses import dataclass

import torch
from torch import Tensor

from superpose import keys
from superpose.contexts.base import Context, Drawn, register_context
from superpose.keys import Key


@register_context
@dataclass(frozen=True, eq=False)
class Signs(Context):
    """C = diag(signs): ±1 as int8 when derived, real numbers when learned."""

    signs: Tensor

    def bind(self, x: Tensor) -> Tensor:
        """Signs ⊙ x."""
        return x * (self.signs.to(x.dtype) if self.signs.is_floating_point() else self.signs)

    def transpose(self) -> Context:
        """A diagonal is its own transpose."""
        return self

    def inverse(self) -> "Signs":
        """1 / signs, which for ±1 are the signs themselves."""
        return Signs(self.signs.reciprocal()) if self.signs.is_floating_point() else self


@dataclass(frozen=True)
class Binary(Drawn):
    """Independent random signs."""

    def draw(self, key: Key, dim: int) -> Tensor:
        """M signs."""
        return torch.from_numpy(keys.signs(key, dim))

    def make(self, numbers: Tensor) -> Context:
        """diag(numbers)."""
        return Signs(numbers)

    def moments(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(0, ‖w ⊙ x‖²)."""
        variance = (w * x).abs().square().sum(-1)
        return torch.zeros_like(variance), variance
