"""identity: C(k) = I for every task, which is the plain network."""

from dataclasses import dataclass

import torch
from torch import Tensor

from superpose.contexts.base import Context, Family, Unchanged
from superpose.keys import Key


@dataclass(frozen=True)
class Identity(Family):
    """No superposition: the baseline, bit for bit the plain network."""

    def context(self, key: Key, dim: int) -> Context:
        """I."""
        return Unchanged()

    def moments(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Always ⟨w, x⟩: every other model interferes in full."""
        mean = (w * x).sum(-1)
        return mean, torch.zeros_like(mean)
