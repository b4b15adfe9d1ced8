"""Statistics of what a layer is given in a task, so that a task can be recognised by its inputs.

Of the rows x (M,) that a layer is given, a task keeps their mean μ, their variance v and, if it is
asked for, a basis B (r, M) of the directions in which they vary most:

    x ~ N(μ, D + Bᵀ B)  with  D = v − diag(Bᵀ B), and never far below the mean of v.

They are updated batch by batch, exactly as if all rows had come at once (B but for the directions
that it leaves out). How far a task's own rows usually are from its μ is kept, too, so that a row
that is farther is known to be of no task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from superpose.errors import SuperposeError

FLOOR = 0.01  # of the mean variance, is added to all: a pixel that is always 0 is not quite certain
PRIOR = 32  # rows that the mean variance counts for beside those that were seen
RECENT = 0.05  # the least share of a batch in how far rows usually are, which changes with μ and v


@dataclass(frozen=True)
class Statistics:
    """Which statistics each task keeps of the inputs of one layer: 2M + 3 numbers, and rank · M.

    The layer is the first one that is linear or a convolution, whose inputs are those of the
    network, unless `layer` names another. Of inputs with several places or tokens, and of images,
    it is their mean that is one row. `rank` is how many directions are kept. While the layers
    before it learn, its inputs change: `forget` is the least share that a new batch then has. With
    `most`, statistics stay as they are once that many rows were learned from, so that inputs that
    drift away are noticed.

    >>> Statistics(rank=8)
    Statistics(layer=None, rank=8, forget=0.0, most=None)
    """

    layer: str | None = None
    rank: int = 0
    forget: float = 0.0
    most: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 0:
            raise SuperposeError(f"rank={self.rank!r}: give a whole number, 0 for none")
        if not 0 <= self.forget < 1:
            raise SuperposeError(f"forget={self.forget!r}: give a share, from 0 to below 1")
        if self.most is not None and self.most < 2:
            raise SuperposeError(
                f"most={self.most!r}: give 2 or more, or None: a variance needs two rows"
            )


def as_statistics(wanted: object) -> Statistics | None:
    """What the option `recognise` means: none, those of the first layer, of another, or these."""
    if wanted is None or wanted is False:
        return None
    if wanted is True:
        return Statistics()
    if isinstance(wanted, str):
        return Statistics(wanted)
    if isinstance(wanted, dict):  # as a file has it
        return Statistics(**wanted)
    if isinstance(wanted, Statistics):
        return wanted
    raise SuperposeError(
        f"recognise={wanted!r}: give True, the name of a layer, or superpose.nn.Statistics(…)"
    )


class Usual(NamedTuple):
    """What tasks usually see: each tensor has a leading dimension of tasks, or none for one."""

    rows: Tensor  # (), how many were seen
    mean: Tensor  # (M,)
    variance: Tensor  # (M,)
    distance: Tensor  # (2,): mean and variance of log d² of the task's own rows
    basis: Tensor  # (r, M), each direction as long as its deviation

    def distances(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """d² = (x − μ)ᵀ Σ⁻¹ (x − μ) of rows and tasks (B, K), and log det Σ (K,), of several."""
        x, mean, variance, basis, rows = (
            t.to(working(t)) for t in (x, self.mean, self.variance, self.basis, self.rows)
        )
        middle = mean.mean(0)
        x, mean = x - middle, mean - middle  # or small differences would be lost in large numbers
        average, seen = variance.mean(1, keepdim=True), rows.unsqueeze(1)
        rest = (variance - basis.square().sum(1)).clamp_min(0)
        smooth = (seen * rest + PRIOR * average) / (seen + PRIOR) + FLOOR * average
        own = smooth.clamp_min(torch.finfo(torch.float32).tiny)
        weighted = mean / own
        squared = x.square() @ own.reciprocal().T - 2 * x @ weighted.T + (mean * weighted).sum(1)
        volume = own.log().sum(1)
        if basis.shape[1]:  # Σ⁻¹ and det Σ by the lemmas of Woodbury and Sylvester
            scaled = basis / own.unsqueeze(1)
            along = torch.einsum("bm,krm->krb", x, scaled)
            along = along - torch.einsum("km,krm->kr", mean, scaled).unsqueeze(2)
            inner = torch.eye(basis.shape[1]).to(basis) + scaled @ basis.mT
            factor = torch.linalg.cholesky(inner)
            solved = torch.linalg.solve_triangular(factor, along, upper=False)
            squared = squared - solved.square().sum(1).T
            volume = volume + 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        return squared.clamp_min(torch.finfo(torch.float32).tiny), volume

    def surprise(self, squared: Tensor) -> Tensor:
        """By how many deviations log d² is above that of the task's own rows, (B, K)."""
        usual, spread = self.distance.to(squared).unbind(-1)
        return (squared.log() - usual) / spread.sqrt().clamp_min(1e-3)

    @torch.no_grad()
    def update(self, x: Tensor, forget: float = 0.0, most: int | None = None) -> None:
        """Take rows (B, M) into the statistics of one task, in place, unless it has the most."""
        x = x.to(self.mean.dtype)
        alone = Usual(*(tensor.unsqueeze(0) for tensor in self))
        started = self.rows > 0
        before, _ = alone.distances(x)  # of rows that it has not seen yet
        taken = torch.ones_like(self.rows) if most is None else (self.rows < most).to(self.rows)
        rows = self.rows + len(x) * taken
        if forget:
            rows = rows.clamp_max(len(x) / forget)
        share = len(x) * taken / rows
        centre = x.mean(0)
        shift, spread = centre - self.mean, x - centre
        between = share * (1 - share)
        if self.basis.shape[0]:
            parts = [self.basis * (1 - share).sqrt(), spread * (share / len(x)).sqrt()]
            every = torch.cat([*parts, shift.unsqueeze(0) * between.sqrt()])
            self.basis.copy_(largest(every, len(self.basis)))
        within = spread.square().mean(0) * share + shift.square() * between
        self.variance.mul_(1 - share).add_(within)
        self.mean.add_(shift * share)
        self.rows.copy_(rows)
        after, _ = alone.distances(x)
        logs = torch.where(started, before, after).log().to(self.distance.dtype)
        recent = share.clamp_min(RECENT) * taken
        moved = logs.mean() - self.distance[0]
        around = logs.var(correction=0) * recent + moved.square() * recent * (1 - recent)
        new = torch.stack([self.distance[0] + moved * recent, self.distance[1] * (1 - recent)])
        new[1] += around
        self.distance.copy_(new)


def joined(one: Usual, other: Usual) -> Usual:
    """The statistics of the rows of both."""
    rows = one.rows + other.rows
    share = other.rows / rows
    shift, between = other.mean - one.mean, share * (1 - share)

    def mixed(a: Tensor, b: Tensor) -> Tensor:
        return a * (1 - share) + b * share

    basis = one.basis
    if len(basis):
        parts = [one.basis * (1 - share).sqrt(), other.basis * share.sqrt()]
        basis = largest(torch.cat([*parts, shift.unsqueeze(0) * between.sqrt()]), len(basis))
    apart = (other.distance[0] - one.distance[0]).square() * between
    distance = mixed(one.distance, other.distance) + torch.stack([torch.zeros_like(apart), apart])
    return Usual(
        rows,
        mixed(one.mean, other.mean),
        mixed(one.variance, other.variance) + shift.square() * between,
        distance,
        basis,
    )


def largest(rows: Tensor, count: int) -> Tensor:
    """B (count, M) for which Bᵀ B is nearest to Rᵀ R, of rows R."""
    _, vectors = torch.linalg.eigh(rows @ rows.mT)
    return vectors[:, -count:].mT @ rows


def working(tensor: Tensor) -> torch.dtype:
    """Double precision, where a device has it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64
