"""Low-rank parts beside a solved weight: W, and Bₖ·Aₖ for each task, in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from superpose.packing.least_squares import Moments, Problem, best_ridge, fit

ROUNDS = 3  # of W for given parts, then parts for a given W; 8 keep little more, in thrice the time

Parts = dict[int, tuple[Tensor, Tensor]]  # A (groups, rank, inputs), B (groups, outputs, rank)


def solve_beside(problems: list[Problem], rank: int) -> Parts:
    """Solve for W and the parts of all tasks in turn, each the best for what the other leaves.

    Parts come first if that leaves less, as of fine-tunes that differ in few directions. They act
    on inputs that are bound. Afterwards the problems are those of W alone.
    """
    superposed = [problem.solution()[0] for problem in problems]
    nothing = [torch.zeros_like(matrix) for matrix in superposed]
    best = min((_parts(problems, start, rank) for start in (superposed, nothing)), key=_error)
    for _ in range(ROUNDS - 1):
        best = _parts(problems, [problem.solution()[0] for problem in best.problems], rank)
    problems[:] = best.problems
    return best.parts


class _Solved(NamedTuple):
    parts: Parts
    problems: list[Problem]  # that they leave to W


def _parts(problems: list[Problem], matrices: list[Tensor], rank: int) -> _Solved:
    parts = {task: _best_part(problems, matrices, task, rank) for task in problems[0].own}
    left = [
        replace(one, given={k: up[:, one.outputs] @ down for k, (down, up) in parts.items()})
        for one in problems
    ]
    return _Solved(parts, left)


def _error(solved: _Solved) -> float:
    error = 0.0
    for problem in solved.problems:
        w = problem.solution()[0]
        for task, part in problem.given.items():
            kept, held = problem.rest(task, w + part)
            error += float((kept + held).energy.sum())
    return error


def _best_part(
    problems: list[Problem], matrices: list[Tensor], task: int, rank: int
) -> tuple[Tensor, Tensor]:
    """A of the directions in which W leaves the largest outputs, and B the best for it."""
    rests = [p.rest(task, matrix) for p, matrix in zip(problems, matrices, strict=True)]
    whole = [fit(kept + held, best_ridge(kept, held)) for kept, held in rests]
    gram: Any = sum((kept + held).gram for kept, held in rests)
    stacked = torch.cat(whole, 1)  # (groups, outputs, inputs)
    largest = torch.linalg.eigh(stacked @ gram @ stacked.mT).eigenvectors[..., -rank:]
    down = largest.mT @ stacked
    down = down / down.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(down.dtype).tiny)
    ups = []
    for kept, held in rests:
        both = kept + held
        ups.append(fit(Moments(down @ both.gram @ down.mT, both.cross @ down.mT), 1e-12))
    return down, torch.cat(ups, 1)
