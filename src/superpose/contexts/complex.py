"""complex and onepower: C(k) = diag(exp(iφ(k))) for complex-valued networks."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from superpose import functional, keys
from superpose.contexts.base import Context, Drawn, Phased, register_context
from superpose.keys import Key

TURN = 2**32  # in the steps that phases are drawn in


@register_context
@dataclass(frozen=True, eq=False)
class Phasors(Phased):
    """C = diag(phasors)."""

    def bind(self, x: Tensor) -> Tensor:
        """Phasors ⊙ x, complex for a real x too."""
        return x * self.phasors

    def transpose(self) -> Context:
        """A diagonal is its own transpose."""
        return self


@dataclass(frozen=True)
class _Diagonal(Drawn):
    def make(self, numbers: Tensor) -> Context:
        """diag(exp(2πi numbers))."""
        return Phasors(functional.phasors(numbers, self.learnable))

    def moments(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(0, ‖w ⊙ x‖²)."""
        variance = (w * x).abs().square().sum(-1)
        return torch.zeros_like(variance), variance


@dataclass(frozen=True)
class Complex(_Diagonal):
    """Independent uniform phases: M a task."""

    def draw(self, key: Key, dim: int) -> Tensor:
        """M phases in turns."""
        return torch.from_numpy(keys.phases(key, dim))


@dataclass(frozen=True)
class OnePower(_Diagonal):
    """Integer powers of one context, c(k) = cᵏ: one number a task, the exponent k."""

    def draw(self, key: Key, dim: int) -> Tensor:
        """k times the phases of the layer's one context, modulo a turn, without rounding."""
        one = keys.phases(Key(key.seed, key.layer, 1), dim) * TURN
        turned = one.astype(np.int64) * (key.task % TURN)  # what int64 cannot hold is whole turns
        return torch.from_numpy(((turned + TURN // 2) % TURN - TURN // 2) / TURN)
