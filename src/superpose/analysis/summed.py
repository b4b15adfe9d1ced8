"""The noise of a layer whose weights are a sum (equation 1), predicted by Proposition 2.

It is averaged over some of the layer's outputs and over some rows of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from superpose.nn import Met
from superpose.packing.weights import Weight, product

SAMPLED = 64  # outputs of a layer, and rows, at most


def share(
    weight: Weight,
    matrix: Tensor,
    bias: Tensor | None,
    others: Sequence[Tensor],
    inputs: Iterable[Met],
) -> float | None:
    """E ‖Σ_s W_s·C(s)⁻¹·C(k)·x‖² / ‖W·x + b‖², for the terms W_s of the other tasks.

    W is (groups, outputs, features), and `sampled` are the outputs of W_s. It is None for a layer
    that gives only zeros.
    """
    expected = energy = 0.0
    step = _step(matrix.shape[1])
    for met in inputs:
        few = Met(met.outputs, met.x[:, :: _step(met.x.shape[1])].double())
        start, stop, _ = met.outputs.indices(matrix.shape[1])
        first, some = -start % step, slice(-(-start // step), -(-stop // step))
        energy += float(product(few, matrix, bias)[..., first::step].square().sum())
        expected += _energy(weight, [other[:, some] for other in others], few.x)
    return expected / energy if energy else None


def sampled(matrix: Tensor) -> Tensor:
    """Evenly spaced outputs of a matrix (groups, outputs, features)."""
    return matrix[:, :: _step(matrix.shape[1])]


def _energy(weight: Weight, others: Sequence[Tensor], x: Tensor) -> float:
    dim, moments = weight.bound.context.dim, weight.bound.context.family.moments
    x_at = x.unflatten(-1, (dim, -1)).mT.unsqueeze(1)  # (groups, 1, rows, positions, inputs)
    mean: Any = 0.0
    variance = 0.0
    for w in others:
        w_at = w.unflatten(-1, (dim, -1)).mT.unsqueeze(2)  # (groups, outputs, 1, positions, inputs)
        one, more = moments(w_at, x_at)
        mean = mean + one.sum(-1)  # over positions, which share a context
        variance += float(more.sum())
    return float(torch.as_tensor(mean).abs().square().sum()) + variance


def _step(count: int) -> int:
    return -(-count // SAMPLED)
