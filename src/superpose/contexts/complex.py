"""complex and onepower: C(k) = diag(exp(iφ(k))) for complex-valued networks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from superpose import functional, keys
from superpose.contexts.base import Context, Drawn, Phased, register
from superpose.keys import Key


@register
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
        one = keys.phases(Key(key.seed, key.layer, 1), dim)
        return torch.from_numpy((key.task * one + 0.5) % 1.0 - 0.5)
