"""Low-rank parts of packed models: B A, which a model has for itself beside what is superposed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from superpose.contexts import Context
from superpose.nn.additions import DOWN, UP
from superpose.nn.binding import grouped
from superpose.nn.layer import Layer
from superpose.packing.least_squares import Moments, Problem, best_ridge, fit
from superpose.packing.packed import ROUNDED

ROUNDS = 3  # of W for given parts, then parts for a given W; 8 keep little more, in thrice the time


def has_part(layer: Layer, name: str) -> bool:
    """Whether tasks have a low-rank part of a bound weight."""
    return name + UP in layer.private


def part_of(layer: Layer, name: str, task: int) -> Any:
    """B A of a task, as `to_matrix` gives the weight; zero if tasks have no such part."""
    if not has_part(layer, name):
        return 0.0
    down, up = (layer.private[name + ending].of(task).detach().double() for ending in (DOWN, UP))
    return up @ down


def is_part(layer: Layer, name: str, task: int, product: Tensor) -> bool:
    """Whether this is the task's B A, up to the rounding of a file that it may have been in."""
    own = [layer.private[name + ending].of(task).detach() for ending in (DOWN, UP)]
    finest = own[0].dtype
    coarser = (one for one in reversed(ROUNDED) if torch.finfo(one).eps > torch.finfo(finest).eps)
    held = (one for one in coarser if all(torch.equal(x.to(one).to(finest), x) for x in own))
    slack = 4 * torch.finfo(next(held, finest)).eps + 1e-5
    return bool((part_of(layer, name, task) - product).norm() <= slack * product.norm())


def set_part(layer: Layer, name: str, task: int, down: Tensor, up: Tensor) -> None:
    """Give a task its A (…, rank, inputs) and B (…, outputs, rank)."""
    for ending, value in ((DOWN, down), (UP, up)):
        own = layer.private[name + ending].of(task).detach()
        own.copy_(value.view(own.shape))


def nearest_part(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A and B of the matrix of this rank that is nearest to one (…, outputs, inputs).

    >>> down, up = nearest_part(torch.diag(torch.tensor([3.0, 2.0, 1.0])), rank=2)
    >>> (up @ down).round(decimals=4) + 0.0
    tensor([[3., 0., 0.],
            [0., 2., 0.],
            [0., 0., 0.]])
    """
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    root = values[..., :rank].sqrt()
    return root.unsqueeze(-1) * right[..., :rank, :], left[..., :rank] * root.unsqueeze(-2)


def solve_beside(problems: list[Problem], rank: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Find W and the low-rank part of each task in turn, each the best for what the other leaves.

    Parts come first if that leaves less, as of fine-tunes that differ in few directions. A (groups,
    rank, inputs) and B (groups, outputs, rank) of each task act on inputs that are bound.
    Afterwards the problems are those of W alone.
    """
    superposed = [problem.solution()[0] for problem in problems]
    nothing = [torch.zeros_like(matrix) for matrix in superposed]
    found = min((_parts(problems, start, rank) for start in (superposed, nothing)), key=_left)
    for _ in range(ROUNDS - 1):
        found = _parts(problems, [problem.solution()[0] for problem in found.problems], rank)
    problems[:] = found.problems
    return found.parts


class _Found(NamedTuple):
    """A low-rank part of each task, and the problems that they leave to W."""

    parts: dict[int, tuple[Tensor, Tensor]]
    problems: list[Problem]


def _parts(problems: list[Problem], matrices: list[Tensor], rank: int) -> _Found:
    """The best parts for what these W leave."""
    parts = {task: _best_part(problems, matrices, task, rank) for task in problems[0].own}
    left = [
        replace(one, given={k: up[:, one.outputs] @ down for k, (down, up) in parts.items()})
        for one in problems
    ]
    return _Found(parts, left)


def _left(found: _Found) -> float:
    """The error that is left when W is the best for these parts."""
    error = 0.0
    for problem in found.problems:
        w = problem.solution()[0]
        for task, part in problem.given.items():
            kept, held = problem.rest(task, w + part)
            error += float((kept + held).energy.sum())
    return error


def _best_part(
    problems: list[Problem], matrices: list[Tensor], task: int, rank: int
) -> tuple[Tensor, Tensor]:
    """A and B of what W leaves of one task: A of the largest outputs, B the best for it."""
    rests = [p.rest(task, matrix) for p, matrix in zip(problems, matrices, strict=True)]
    whole = [fit(kept + held, best_ridge(kept, held)) for kept, held in rests]
    gave: Any = sum((kept + held).gram for kept, held in rests)
    stacked = torch.cat(whole, 1)  # (groups, outputs, inputs)
    largest = torch.linalg.eigh(stacked @ gave @ stacked.mT).eigenvectors[..., -rank:]
    down = largest.mT @ stacked
    down = down / down.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(down.dtype).tiny)
    ups = []
    for kept, held in rests:
        both = kept + held
        ups.append(fit(Moments(down @ both.gram @ down.mT, both.cross @ down.mT), 1e-12))
    return down, torch.cat(ups, 1)


def unbound(layer: Layer, name: str, task: int, down: Tensor) -> Tensor:
    """A C(k), for inputs that are not bound."""
    shape = layer.private[name + DOWN].shape
    return _context(layer, name, task, down).bind_weight(down.view(shape))


def beside(layer: Layer, name: str, task: int) -> Any:
    """B A C(k)⁻¹, what would be added to W if the part acted on bound inputs, as W does."""
    if not has_part(layer, name):
        return 0.0
    part = part_of(layer, name, task)
    return layer.from_matrix(name, _context(layer, name, task, part).unbind_weight(part))


def _context(layer: Layer, name: str, task: int, like: Tensor) -> Context:
    return grouped(layer, name, layer.contexts[name].derive(task)).to(like.device, like.dtype)
