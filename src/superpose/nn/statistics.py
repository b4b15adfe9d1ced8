"""Statistics of what a layer is given in a task, so that a task can be recognised by its inputs.

Of the rows x (M,) that a layer is given, a task keeps their mean μ, their variance v and, if it is
asked for, a basis B (r, M) of the directions in which they vary most:

    x ~ N(μ, D + Bᵀ B)  with  D = v − diag(Bᵀ B), and never far below the mean of v.

If classes are told apart, each class c has a mean μ_c, v and B are of the rows within classes, and
p(x) is the sum of (share of c) · N(x; μ_c, D + Bᵀ B).

They are updated batch by batch, exactly as if all rows had come at once (B but for the directions
that it leaves out). How far a task's own rows usually are from the nearest μ is kept, too, so that
a row that is farther is known to be of no task.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
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

    `base=True` is of the inputs that the layer has in the base, the same in all tasks: a deep layer
    then takes one forward pass, whatever the number of tasks. `classes` is how many classes have a
    mean of their own, (classes − 1) · (M + 1) numbers more; the spread around them is taken to be
    that of all tasks together, as in linear discriminant analysis. Both are told by
    `model.remember(x, task=…)`, `classes=y` beside x, and not seen in training.

    >>> Statistics(rank=8)
    Statistics(layer=None, rank=8, forget=0.0, most=None, base=False, classes=0)
    """

    layer: str | None = None
    rank: int = 0
    forget: float = 0.0
    most: int | None = None
    base: bool = False
    classes: int = 0

    @property
    def only_told(self) -> bool:
        """Whether `remember` alone adds to them: training shows neither a base nor classes."""
        return self.base or bool(self.classes)

    def described(self) -> dict[str, Any]:
        """Its fields, for files and records; `base` and `classes`, which came later, if used."""
        later = () if self.only_told else ("base", "classes")
        return {name: value for name, value in asdict(self).items() if name not in later}

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 0:
            raise SuperposeError(f"rank={self.rank!r}: give a whole number, 0 for none")
        if not 0 <= self.forget < 1:
            raise SuperposeError(f"forget={self.forget!r}: give a share, from 0 to below 1")
        if self.most is not None and self.most < 2:
            raise SuperposeError(
                f"most={self.most!r}: give 2 or more, or None: a variance needs two rows"
            )
        if not isinstance(self.classes, int) or isinstance(self.classes, bool) or self.classes < 0:
            raise SuperposeError(f"classes={self.classes!r}: give their number, 0 for none")
        if self.only_told and (self.forget or self.most is not None):
            raise SuperposeError(
                "forget and most are for statistics that are taken in training; those of a base or "
                "of classes are told by model.remember: leave them out"
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
    """What tasks usually see: each tensor has a leading dimension of tasks, or none for one.

    Where classes are not told apart, C = 1.
    """

    rows: Tensor  # (C,), how many were seen
    mean: Tensor  # (C, M)
    variance: Tensor  # (M,), within classes
    distance: Tensor  # (2,): mean and variance of log d² of the task's own rows
    basis: Tensor  # (r, M), each direction as long as its deviation

    @classmethod
    def of(cls, rows: Tensor, mean: Tensor, *others: Tensor) -> Usual:
        """Views of tensors as they are stored: without classes, those of the only one."""
        if mean.ndim == others[0].ndim:
            rows, mean = rows.unsqueeze(-1), mean.unsqueeze(-2)
        return cls(rows, mean, *others)

    def distances(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """d² = (x − μ)ᵀ Σ⁻¹ (x − μ) of rows, tasks and classes (B, K, C), and log det Σ (K,)."""
        x, mean, variance, basis, rows = (
            t.to(working(t)) for t in (x, self.mean, self.variance, self.basis, self.rows)
        )
        middle = mean.mean((0, 1))
        x, mean = x - middle, mean - middle  # or small differences would be lost in large numbers
        average, seen = variance.mean(1, keepdim=True), rows.sum(1, keepdim=True)
        rest = (variance - basis.square().sum(1)).clamp_min(0)
        smooth = (seen * rest + PRIOR * average) / (seen + PRIOR) + FLOOR * average
        own = smooth.clamp_min(torch.finfo(torch.float32).tiny)
        weighted = mean / own.unsqueeze(1)
        squared = (x.square() @ own.reciprocal().T).unsqueeze(2) + (mean * weighted).sum(2)
        squared = squared - 2 * torch.einsum("bm,kcm->bkc", x, weighted)
        volume = own.log().sum(1)
        if basis.shape[1]:  # Σ⁻¹ and det Σ by the lemmas of Woodbury and Sylvester
            scaled = basis / own.unsqueeze(1)
            inner = torch.eye(basis.shape[1]).to(basis) + scaled @ basis.mT
            factor = torch.linalg.cholesky(inner)
            of_rows, of_means = (
                torch.linalg.solve_triangular(factor, scaled @ one.mT, upper=False)
                for one in (x, mean)  # (K, r, B) and (K, r, C)
            )
            along = of_rows.square().sum(1).T.unsqueeze(2) + of_means.square().sum(1)
            squared = squared - along + 2 * torch.einsum("krb,krc->bkc", of_rows, of_means)
            volume = volume + 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        return squared.clamp_min(torch.finfo(torch.float32).tiny), volume

    def nearest(self, squared: Tensor) -> Tensor:
        """d² to the nearest class that was seen, (B, K)."""
        return squared.masked_fill(self.rows == 0, torch.inf).amin(2)

    def likelihood(self, squared: Tensor, volume: Tensor) -> Tensor:
        """log p(x) of rows and tasks (B, K), up to what is the same for all."""
        rows = self.rows.to(squared)
        share = rows / rows.sum(1, keepdim=True)
        return (share.log() - squared / 2).logsumexp(2) - volume / 2

    def surprise(self, nearest: Tensor) -> Tensor:
        """By how many deviations log d² is above that of the task's own rows, (B, K)."""
        usual, spread = self.distance.to(nearest).unbind(-1)
        return (nearest.log() - usual) / spread.sqrt().clamp_min(1e-3)

    def pooled(self) -> Usual:
        """The classes of all tasks as those of one: the spread around them is the same for all."""
        share = self.rows.sum(1) / self.rows.sum()
        return Usual(
            self.rows.reshape(1, -1),
            self.mean.flatten(0, 1).unsqueeze(0),
            (share @ self.variance).unsqueeze(0),
            self.distance[:1],
            (self.basis * share.sqrt()[:, None, None]).flatten(0, 1).unsqueeze(0),
        )

    @torch.no_grad()
    def update(
        self,
        x: Tensor,
        classes: Tensor | None = None,
        *,
        forget: float = 0.0,
        most: int | None = None,
    ) -> None:
        """Take rows (B, M), of classes (B,), into the statistics of one task, in place.

        A task that has seen the most rows takes no more.
        """
        x = x.to(self.mean.dtype)
        if classes is None:
            classes = torch.zeros(len(x), dtype=torch.long, device=x.device)
        alone = Usual(*(tensor.unsqueeze(0) for tensor in self))
        known = self.rows[classes] > 0
        before = alone.nearest(alone.distances(x)[0])[:, 0]  # of rows that it has not seen yet
        seen = self.rows.sum()
        taken = torch.ones_like(seen) if most is None else (seen < most).to(seen)
        member = F.one_hot(classes, len(self.rows)).to(x)  # (B, C)
        count = member.sum(0)
        rows = self.rows + count * taken
        if forget:
            rows = rows.clamp_max(len(x) / forget)
        total = rows.sum()
        share, of_all = count * taken / rows.clamp_min(1), len(x) * taken / total
        centre = member.T @ x / count.clamp_min(1).unsqueeze(1)  # (C, M)
        shift, spread = centre - self.mean, x - centre[classes]
        between = (rows / total * share * (1 - share)).unsqueeze(1)
        if self.basis.shape[0]:
            parts = [self.basis * (1 - of_all).sqrt(), spread * (of_all / len(x)).sqrt()]
            every = torch.cat([*parts, shift * between.sqrt()])
            self.basis.copy_(largest(every, len(self.basis)))
        within = spread.square().mean(0) * of_all + (shift.square() * between).sum(0)
        self.variance.mul_(1 - of_all).add_(within)
        self.mean.add_(shift * share.unsqueeze(1))
        self.rows.copy_(rows)
        after = alone.nearest(alone.distances(x)[0])[:, 0]
        logs = torch.where(known, before, after).log().to(self.distance.dtype)
        recent = of_all.clamp_min(RECENT) * taken
        moved = logs.mean() - self.distance[0]
        around = logs.var(correction=0) * recent + moved.square() * recent * (1 - recent)
        new = torch.stack([self.distance[0] + moved * recent, self.distance[1] * (1 - recent)])
        new[1] += around
        self.distance.copy_(new)

    def merged(self, other: Usual) -> Usual:
        """The statistics of the rows of both, class by class."""
        rows = self.rows + other.rows
        share, of_all = other.rows / rows.clamp_min(1), other.rows.sum() / rows.sum()
        shift = other.mean - self.mean
        between = (rows / rows.sum() * share * (1 - share)).unsqueeze(1)

        def mixed(a: Tensor, b: Tensor, share: Tensor = of_all) -> Tensor:
            return a * (1 - share) + b * share

        basis = self.basis
        if len(basis):
            parts = [self.basis * (1 - of_all).sqrt(), other.basis * of_all.sqrt()]
            basis = largest(torch.cat([*parts, shift * between.sqrt()]), len(basis))
        apart = (other.distance[0] - self.distance[0]).square() * of_all * (1 - of_all)
        distance = mixed(self.distance, other.distance) + torch.stack(
            [torch.zeros_like(apart), apart]
        )
        return Usual(
            rows,
            mixed(self.mean, other.mean, share.unsqueeze(1)),
            mixed(self.variance, other.variance) + (shift.square() * between).sum(0),
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
