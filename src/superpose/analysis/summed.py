"""The noise of a layer whose weights are a sum (equation 1), predicted by Proposition 2.

It is averaged over some of the layer's outputs and over some rows of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from superpose.packing.inputs import Weight

SAMPLED = 64  # outputs of a layer, and rows, at most


def expected_energy(weight: Weight, others: Iterable[Tensor], x: Tensor) -> float:
    """E ‖Σ_s w_s C(s)⁻¹ C(k) x‖² for weights (groups, outputs, M) and rows x (groups, rows, M)."""
    context = weight.layer.contexts[weight.name]
    dim, moments = context.dim, context.family.moments
    mean: Any = 0.0
    variance = 0.0
    for w in others:
        if dim == x.shape[-1]:
            one, more = moments(w.unsqueeze(2), x.unsqueeze(1))
        else:  # channels are bound, the same for each position; positions are added up
            w_at, x_at = (side.unflatten(-1, (dim, -1)).mT for side in (w, x))
            one, more = moments(w_at.unsqueeze(2), x_at.unsqueeze(1))
            one = one.sum(-1)
        mean = mean + one
        variance += float(more.sum())
    return float(torch.as_tensor(mean).abs().square().sum()) + variance


def sampled_outputs(matrix: Tensor) -> Tensor:
    """Evenly spaced outputs of a matrix (groups, outputs, inputs)."""
    return matrix[:, :: _stride(matrix.shape[1])]


def among_sampled(outputs: slice, matrix: Tensor) -> slice:
    """Which of a matrix's sampled outputs are among these."""
    start, stop, _ = outputs.indices(matrix.shape[1])
    step = _stride(matrix.shape[1])
    return slice(-(-start // step), -(-stop // step))


def sampled_rows(x: Tensor) -> Tensor:
    """Evenly spaced rows of inputs (groups, rows, features)."""
    return x[:, :: _stride(x.shape[1])]


def _stride(count: int) -> int:
    """The step that takes at most SAMPLED of so many."""
    return -(-count // SAMPLED)
