"""Method `solve`: layer by layer, the weights that do best what the models' own weights did.

For one layer, with X the inputs that it sees in model k alone and X̂ those that it sees in the
packed network, whose earlier layers are packed already, so that errors do not pile up:

    minimise Σₖ ‖W C(k) X̂ₖ + bₖ − (Wₖ Xₖ + bₖ⁰)‖² / ‖Wₖ Xₖ‖² + ridge · ‖W‖²,

which needs no more of the inputs than A = Σₖ C X̂ₖ X̂ₖᵀ Cᵀ and B = Σₖ Wₖ Xₖ X̂ₖᵀ Cᵀ:
W = B (A + ridge)⁻¹.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from superpose.model import Superposed
from superpose.nn.names import joined
from superpose.store.inputs import Part, Rows, Weight, in_order, quiet_run, reaching, weights_of
from superpose.store.sources import Sources

RIDGES = tuple(10.0**exponent for exponent in range(-10, 0))  # of the mean eigenvalue of A
HELD_OUT = 10  # one row in so many chooses the ridge


@dataclass
class Moments:
    """What the least squares of one part need of its data, in float64."""

    gram: Any = 0.0  # Σ x xᵀ (groups, inputs, inputs)
    cross: Any = 0.0  # Σ y xᵀ (groups, outputs, inputs)
    energy: Any = 0.0  # Σ ‖y‖² (groups,)
    x: Any = 0.0  # Σ x (groups, inputs)
    y: Any = 0.0  # Σ y (groups, outputs)
    rows: int = 0

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Moments:
        """Of inputs (groups, rows, inputs) and outputs (groups, rows, outputs)."""
        x, y = x.double(), y.double()
        return cls(x.mT @ x, y.mT @ x, y.square().sum((1, 2)), x.sum(1), y.sum(1), x.shape[1])

    def __add__(self, other: Moments) -> Moments:
        own, others = vars(self).values(), vars(other).values()
        return Moments(*(a + b for a, b in zip(own, others, strict=True)))

    def centred(self) -> Moments:
        """About the means, which a bias takes care of."""
        gram = self.gram - self.x.unsqueeze(-1) * self.x.unsqueeze(-2) / self.rows
        cross = self.cross - self.y.unsqueeze(-1) * self.x.unsqueeze(-2) / self.rows
        energy = self.energy - self.y.square().sum(-1) / self.rows
        return Moments(gram, cross, energy, self.x, self.y, self.rows)

    def weighed(self, weight: Any) -> Moments:
        """As if the data were √weight times as large."""
        return Moments(self.gram * weight, self.cross * weight, self.energy * weight, rows=0)


def scale(moments: Iterable[Moments]) -> Tensor:
    """What a task's moments are divided by: ‖Y‖², or ‖X‖² where a layer should give only zeros."""
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
    values, vectors = torch.linalg.eigh(kept.gram)
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
    """The least squares of one part of a weight, summed over the tasks as they come."""

    outputs: slice
    centre: bool
    kept: Moments = field(default_factory=Moments)
    held: Moments = field(default_factory=Moments)
    means: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add(self, task: int, kept: Moments, held: Moments) -> None:
        """One task's data; every task weighs the same, whatever the size of its outputs."""
        both = kept + held
        weight = 1 / scale([both])
        self.means[task] = both.x / both.rows, both.y / both.rows
        for side, more in (("kept", kept), ("held", held)):
            if more.rows:
                more = (more.centred() if self.centre else more).weighed(weight)
                setattr(self, side, getattr(self, side) + more)

    def solution(self) -> tuple[Tensor, dict[int, Tensor]]:
        """W (groups, outputs, inputs), and each task's bias (groups, outputs)."""
        w = fit(self.kept + self.held, best_ridge(self.kept, self.held))
        biases = {k: y - (w @ x.unsqueeze(-1)).squeeze(-1) for k, (x, y) in self.means.items()}
        return w, biases


def solve(
    packed: Superposed,
    sources: Sources,
    calibration: Mapping[Any, Any],
    batch_size: int,
    track: Any = iter,
) -> None:
    """Set the bound weights of a packed model, and the biases that go with them."""
    names = packed.superposition.names
    weights = weights_of(packed)
    first = next(iter(names))
    with quiet_run():
        ordered = in_order(sources.open(first), weights, Rows.of(first, calibration[first])[:2])
        done: list[Weight] = []
        for weight, calls in track(ordered):
            problems: list[Problem] = []
            for name, number in names.items():
                rows, read = Rows.of(name, calibration[name]), read_out(done, number)
                net = sources.open(name)
                seen = observe(weight, calls, number, net, rows, read, batch_size)
                centre = bias_name(weight) is not None
                problems = problems or [Problem(part.outputs, centre) for part in seen]
                for problem, part in zip(problems, seen, strict=True):
                    problem.add(number, part.kept, part.held)
            _store(weight, problems)
            done.append(weight)


def read_out(weights: Iterable[Weight], task: int) -> dict[str, Tensor]:
    """What the plain network of a task has to use in place of its own weights."""
    found: dict[str, Tensor] = {}
    for weight in weights:
        layer = weight.layer
        own = layer.read_out(task)
        found[weight.plain] = own[weight.name].detach()
        bias = bias_name(weight)
        if bias is not None:
            found[joined(layer.path, bias)] = own[bias].detach()
    return found


def bias_name(weight: Weight) -> str | None:
    """The private tensor that is added to what this weight gives, if there is one."""
    name = {"weight": "bias", "in_proj_weight": "in_proj_bias"}.get(weight.name, "")
    return name if name in weight.layer.private else None


@dataclass(frozen=True)
class Seen:
    """What one task's inputs tell of one part of a weight: some rows to fit, some held out."""

    outputs: slice
    kept: Moments
    held: Moments

    @property
    def both(self) -> Moments:
        """Of all its rows."""
        return self.kept + self.held


def observe(
    weight: Weight,
    calls: int,
    task: int,
    net: nn.Module,
    rows: Rows,
    read: dict[str, Tensor],
    batch_size: int,
) -> list[Seen]:
    """Run a model's inputs through it as it was, and as it is with the weights read out so far."""
    own = weight.matrix(net.get_parameter(weight.plain).detach())
    base = weight.layer.bases.get(weight.name)
    common = None if base is None else weight.matrix(base.detach())
    bias = bias_name(weight)
    offset = None
    if bias is not None:
        offset = net.get_parameter(joined(weight.layer.path, bias)).detach()
        offset = offset.view(own.shape[0], 1, -1)
    seen: list[Seen] = []
    index = torch.arange(len(rows))
    held_out = index % HELD_OUT == HELD_OUT - 1
    for held in (False, True):
        for seed, batch in enumerate(rows[index[held_out == held]].split(batch_size)):
            alone = reaching(net, weight, calls, batch, {}, seed)
            now = reaching(net, weight, calls, batch, read, seed) if read else alone
            seen = seen or [Seen(part.outputs, Moments(), Moments()) for part in alone]
            for place, (part, x) in enumerate(zip(alone, now, strict=True)):
                more = _moments(weight, task, part, x.x, own, common, offset)
                side = "held" if held else "kept"
                summed = getattr(seen[place], side) + more
                seen[place] = replace(seen[place], **{side: summed})
    return seen


def _moments(
    weight: Weight,
    task: int,
    alone: Part,
    now: Tensor,
    own: Tensor,
    common: Tensor | None,
    offset: Tensor | None,
) -> Moments:
    y = alone.x @ own[:, alone.outputs].mT
    if offset is not None:
        y = y + offset[..., alone.outputs]
    if common is not None:
        y = y - now @ common[:, alone.outputs].mT
    context = weight.layer.contexts[weight.name].derive(task)
    return Moments.of(weight.bind(now.double(), context), y)


def _store(weight: Weight, problems: list[Problem]) -> None:
    layer = weight.layer
    target = weight.tensor
    matrix = weight.matrix(target.detach()).double().clone()
    bias = bias_name(weight)
    for problem in problems:
        w, biases = problem.solution()
        matrix[:, problem.outputs] = w
        if bias is not None:
            for task, value in biases.items():
                own = layer.private[bias].of(task)
                own.detach().view(matrix.shape[0], -1)[:, problem.outputs] = value.to(own)
    with torch.no_grad():
        target.copy_(weight.from_matrix(matrix))
