"""phase: complex superposition for a real network; planes of two coordinates are turned."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from superpose import functional, keys
from superpose.contexts.base import Context, Drawn, Phased, register_context
from superpose.keys import Key


@register_context
@dataclass(frozen=True, eq=False)
class Planes(Phased):
    """Turns the plane of coordinates 2j and 2j + 1 by phase j.

    A last coordinate without a partner can only keep or change its sign: it takes the nearer of the
    two, which is exact for derived phases and their products and integer powers.
    """

    def bind(self, x: Tensor) -> Tensor:
        """Each plane turned."""
        if x.shape[-1] % 2 == 0:
            return functional.turn(x, self.phasors)
        last = torch.where(self.phasors[..., -1:].real < 0, -1, 1).to(self.phasors.dtype)
        phasors = torch.cat([self.phasors[..., :-1], last], -1)
        return functional.turn(F.pad(x, (0, 1)), phasors)[..., :-1]

    def transpose(self) -> Context:
        """A rotation's transpose is its inverse."""
        return self.inverse()


@dataclass(frozen=True)
class Phase(Drawn):
    """Independent uniform phases: M/2 a task, and no second set of weights."""

    def draw(self, key: Key, dim: int) -> Tensor:
        """⌈M/2⌉ phases in turns; a coordinate without a partner has 0 or −½."""
        turns = keys.phases(key, (dim + 1) // 2)
        if dim % 2:
            turns[-1] = np.floor(turns[-1]) / 2.0
        return torch.from_numpy(turns)

    def make(self, numbers: Tensor) -> Context:
        """Planes turned by the numbers."""
        return Planes(functional.phasors(numbers, self.learnable))

    def moments(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(0, Σ over planes ‖w‖²‖x‖²/2)."""
        odd = w.shape[-1] % 2
        squares = [F.pad(v.square(), (0, odd)).unflatten(-1, (-1, 2)).sum(-1) for v in (w, x)]
        product = squares[0] * squares[1] / 2
        variance = product.sum(-1) + (product[..., -1] if odd else 0)
        return torch.zeros_like(variance), variance
