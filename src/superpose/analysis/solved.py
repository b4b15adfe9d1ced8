"""The noise of a layer that was solved for, predicted from the spectra of its inputs.

The contexts turn the second moments Σₖ of the tasks' inputs independently, so A = Σₖ C Σₖ Cᵀ is a
sum of free matrices, and in the mean (A + λ)⁻¹ looks to task k like (Σₖ + ωₖ)⁻¹: the others act as
a ridge ωₖ, where (free additive convolution)

    tr (Σₖ + ωₖ)⁻¹ / M = m for every k,    Σₖ ωₖ = λ + (K − 1) / m.

What least squares cannot explain is then ‖Y‖² − tr B (Σₖ + ωₖ)⁻¹ Bᵀ with B = Y Xᵀ. It vanishes as
long as the ranks of all Σₖ together stay below M: that is the capacity of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from superpose.packing.solve import Seen

RIDGE = 1e-9  # of the mean eigenvalue, where a solve without one is meant
STEPS = 56  # of a bisection: down to rounding

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spectrum:
    """The inputs of a layer in one task, in the directions in which they vary; shares of ‖Y‖²."""

    values: Tensor  # (M,) the eigenvalues of Σ = X Xᵀ
    explained: Tensor  # (M,) ‖B v‖² for each eigenvector v, B = Y Xᵀ
    energy: float  # of Y, without the means if a bias takes care of them

    @classmethod
    def of(cls, gram: Tensor, cross: Tensor, energy: Tensor, whole: Tensor) -> Spectrum:
        """From Σ (M, M), B (N, M) and the energy, divided by `whole`."""
        values, vectors = torch.linalg.eigh(gram / whole)
        explained = (cross @ vectors / whole).square().sum(0)
        return cls(values.clamp_min(0), explained, float(energy / whole))

    @property
    def rank(self) -> int:
        """How many directions hold 99 % of the inputs' energy."""
        held = self.values.flip(0).cumsum(0)
        return int((held < 0.99 * held[-1]).sum()) + 1

    def noise(self, ridge: float) -> float:
        """What least squares cannot explain when the other tasks act as this ridge."""
        floor = RIDGE * float(self.values.mean())
        return self.energy - float((self.explained / (self.values + ridge + floor)).sum())


def spectra(seen: Iterable[Seen], whole: Tensor, centred: bool) -> list[Spectrum]:
    """The spectra of a weight's inputs, one for each group of each of its parts."""
    found = []
    for one in seen:
        both = one.both.centred() if centred else one.both
        blocks = zip(both.gram, both.cross, both.energy, strict=True)
        found += [Spectrum.of(*block, whole) for block in blocks]
    return found


def ridges(spectra: Tensor, copies: int = 1, room: int | None = None) -> Tensor:
    """ωₖ (K,): the ridge that the other tasks are to each, from eigenvalues (K, M).

    There are `copies` tasks of each kind, and `room` inputs if that is more than M.

    >>> ridges(torch.ones(3, 8)).round(decimals=4)  # inputs that fill the layer: K − 1
    tensor([2., 2., 2.], dtype=torch.float64)
    >>> bool(ridges(torch.tensor([[1.0, 0, 0, 0]]), copies=3) < 1e-6)  # 3 × 1 < 4: exact
    True
    """
    values = spectra.double().cpu().numpy()
    scale = float(values.mean()) or 1.0
    values = values / scale
    kinds, own = values.shape
    tasks, empty = copies * kinds, (room or own) - own

    def resolvent(log: Array) -> Array:
        ridge = np.exp(log)[:, None]
        return ((1 / (values + ridge)).sum(1) + empty / ridge[:, 0]) / (own + empty)

    def ridge(log: Array) -> Array:  # tr (Σ + ω)⁻¹ falls with ω
        wanted = np.exp(log)
        return np.exp(_root(lambda middle: resolvent(middle) - wanted, np.zeros(kinds)))

    def excess(log: Array) -> Array:  # Σ ω(m) − (K − 1) / m − λ falls with m
        return copies * ridge(log).sum() - (tasks - 1) / np.exp(log) - tasks * RIDGE

    def alone(log: Array) -> Array:  # the same for one kind, without the inner root
        return (tasks - 1) / resolvent(log) + tasks * RIDGE - tasks * np.exp(log)

    found = np.exp(_root(alone, np.zeros(1))) if kinds == 1 else ridge(_root(excess, np.zeros(1)))
    return torch.from_numpy(found * scale)


def _root(falling: Callable[[Array], Array], like: Array) -> Array:
    """Where functions that fall cross zero, by bisection."""
    low, high = like - 50.0, like + 50.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        above = falling(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2
