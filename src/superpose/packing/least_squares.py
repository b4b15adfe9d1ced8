"""Least squares of one weight: W = B (A + ridge)⁻¹ from moments that are summed over the tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

RIDGES = tuple(10.0**exponent for exponent in range(-10, 0))  # of the mean eigenvalue of A


@dataclass
class Moments:
    """Second moments of inputs x and wanted outputs y, in float64: all that least squares needs."""

    gram: Any = 0.0  # Σ x xᵀ (groups, inputs, inputs)
    cross: Any = 0.0  # Σ y xᵀ (groups, outputs, inputs)
    energy: Any = 0.0  # Σ ‖y‖² (groups,)
    x: Any = 0.0  # Σ x (groups, inputs)
    y: Any = 0.0  # Σ y (groups, outputs)
    rows: int = 0
    spectrum: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # of gram, once computed

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Moments:
        """From inputs (groups, rows, inputs) and outputs (groups, rows, outputs)."""
        x, y = x.double(), y.double()
        return cls(x.mT @ x, y.mT @ x, y.square().sum((1, 2)), x.sum(1), y.sum(1), x.shape[1])

    def __add__(self, other: Moments) -> Moments:
        names = ("gram", "cross", "energy", "x", "y", "rows")
        return Moments(*(getattr(self, name) + getattr(other, name) for name in names))

    def eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of `gram`; those of `less` are the same."""
        if not self.spectrum:
            self.spectrum.append(torch.linalg.eigh(self.gram))
        return self.spectrum[0]

    def centred(self) -> Moments:
        """The moments about the means, for a layer that has a bias."""
        gram = self.gram - self.x.unsqueeze(-1) * self.x.unsqueeze(-2) / self.rows
        cross = self.cross - self.y.unsqueeze(-1) * self.x.unsqueeze(-2) / self.rows
        energy = self.energy - self.y.square().sum(-1) / self.rows
        return Moments(gram, cross, energy, self.x, self.y, self.rows)

    def less(self, matrix: Tensor) -> Moments:
        """The moments of x and y − M·x, for a matrix M (groups, outputs, inputs)."""
        if not isinstance(self.gram, Tensor):  # there are no rows
            return self
        gave = matrix @ self.gram
        energy = self.energy - (matrix * (2 * self.cross - gave)).sum((1, 2))
        y = self.y - (matrix @ self.x.unsqueeze(-1)).squeeze(-1) if self.rows else self.y
        return replace(self, cross=self.cross - gave, energy=energy, y=y)

    def weighed(self, weight: Any) -> Moments:
        """The moments of data that are √weight times as large."""
        return Moments(self.gram * weight, self.cross * weight, self.energy * weight, rows=0)


def scale(moments: Iterable[Moments]) -> Tensor:
    """‖Y‖² of all parts of a weight, or ‖X‖² where it should give only zeros."""
    moments = list(moments)
    outputs = sum(part.energy.sum() for part in moments)
    inputs = sum(part.gram.diagonal(dim1=-2, dim2=-1).sum() for part in moments)
    return next((energy for energy in (outputs, inputs) if energy > 0), torch.ones(()))


def fit(moments: Moments, ridge: float) -> Tensor:
    """W = B (A + ridge)⁻¹ (groups, outputs, inputs); the ridge is relative to A's mean eigenvalue.

    >>> x = torch.randn(1, 9, 3, generator=torch.Generator().manual_seed(0))
    >>> w = torch.tensor([[[1.0, 2.0, 3.0]]], dtype=torch.float64)
    >>> torch.testing.assert_close(fit(Moments.of(x, x.double() @ w.mT), 1e-12), w)
    """
    gram = moments.gram.clone()
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    floor = torch.finfo(gram.dtype).tiny  # an input that is always zero
    diagonal += (ridge * diagonal.mean(-1, keepdim=True)).clamp_min(floor)
    return torch.linalg.solve(gram, moments.cross.mT).mT


def best_ridge(kept: Moments, held: Moments) -> float:
    """The ridge whose fit to some rows is best on the others; one eigendecomposition for all."""
    if held.rows == 0 and not isinstance(held.gram, Tensor):
        return RIDGES[0]
    values, vectors = kept.eigen()
    values = values.clamp_min(0)
    cross = kept.cross @ vectors
    held_gram = vectors.mT @ held.gram @ vectors
    held_cross = held.cross @ vectors
    mean = values.mean(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)

    def error(ridge: float) -> float:
        w = cross / (values + ridge * mean).unsqueeze(-2)
        return float(((w @ held_gram) * w).sum() - 2 * (w * held_cross).sum())

    return min(RIDGES, key=error)


@dataclass
class Problem:
    """The least squares of some outputs of a weight, summed over the tasks as they come.

    With `apart`, each task's moments are kept beside their sum, and `given` may have a matrix for
    each task that is added to W, such as a low-rank part.
    """

    outputs: slice
    centre: bool
    apart: bool = False
    kept: Moments = field(default_factory=Moments)
    held: Moments = field(default_factory=Moments)
    means: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    own: dict[int, tuple[Moments, Moments]] = field(default_factory=dict)
    given: dict[int, Tensor] = field(default_factory=dict)

    def add(self, task: int, kept: Moments, held: Moments) -> None:
        """Add a task: rows to fit, and rows held out. All tasks weigh the same, by `scale`."""
        both = kept + held
        weight = 1 / scale([both])
        self.means[task] = both.x / both.rows, both.y / both.rows
        kept, held = (
            (side.centred() if self.centre else side).weighed(weight) if side.rows else side
            for side in (kept, held)
        )
        self.kept, self.held = self.kept + kept, self.held + held
        if self.apart:
            self.own[task] = kept, held

    def solution(self) -> tuple[Tensor, dict[int, Tensor]]:
        """W (groups, outputs, inputs), and each task's bias (groups, outputs)."""
        kept, held = self.kept, self.held
        if self.given:
            rests = [self.rest(task, matrix) for task, matrix in self.given.items()]
            kept, held = (
                replace(whole, cross=sum(part.cross for part in side))
                for whole, side in zip((kept, held), zip(*rests, strict=True), strict=True)
            )
        w = fit(kept + held, best_ridge(kept, held))
        biases = {
            k: y - ((w + self.given.get(k, 0.0)) @ x.unsqueeze(-1)).squeeze(-1)
            for k, (x, y) in self.means.items()
        }
        return w, biases

    def rest(self, task: int, matrix: Tensor) -> tuple[Moments, Moments]:
        """The moments of a task after a matrix has given its share: rows to fit, and held out."""
        kept, held = self.own[task]
        return kept.less(matrix), held.less(matrix)
