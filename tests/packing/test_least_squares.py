"""Least squares of one layer, against NumPy's."""

import numpy as np
import torch

from superpose.packing.least_squares import RIDGES, Moments, Problem, best_ridge, fit


def test_the_solution_is_least_squares_with_a_bias_for_each_task():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 40, 6, generator=generator, dtype=torch.float64) + 1
    y = torch.randn(2, 40, 3, generator=generator, dtype=torch.float64) + torch.tensor([1.0, 5, -2])
    problem = Problem(slice(None), centre=True)
    for task in (0, 1):
        whole = Moments.of(x[task : task + 1], y[task : task + 1])
        pairs = zip(x[task, None].split(7, 1), y[task, None].split(7, 1), strict=True)
        parts = [Moments.of(*pair) for pair in pairs]
        summed = sum(parts[1:], parts[0])
        torch.testing.assert_close(summed.gram, whole.gram)
        problem.add(task, summed, Moments())
    w, biases = problem.solution()
    scale = y.square().sum((1, 2)).rsqrt()
    ones = torch.block_diag(torch.ones(40, 1), torch.ones(40, 1)).double()
    design = torch.cat([x.flatten(0, 1), ones], 1) * scale.repeat_interleave(40)[:, None]
    target = y.flatten(0, 1) * scale.repeat_interleave(40)[:, None]
    solution = np.linalg.lstsq(design.numpy(), target.numpy(), rcond=None)[0]
    np.testing.assert_allclose(w[0].numpy(), solution[:6].T, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(torch.cat([biases[0], biases[1]]).numpy(), solution[6:], atol=1e-6)


def test_the_ridge_is_chosen_by_rows_that_were_held_out():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 60, 50, generator=generator, dtype=torch.float64)
    w = torch.randn(1, 2, 50, generator=generator, dtype=torch.float64)
    noise = torch.randn(1, 60, 2, generator=generator, dtype=torch.float64)
    few, rest = x[:, :55], x[:, 55:]
    for size, low, high in ((0.0, 0, 1e-9), (30.0, 1e-3, 1)):
        y = x @ w.mT + size * noise
        kept, held = Moments.of(few, y[:, :55]), Moments.of(rest, y[:, 55:])
        chosen = best_ridge(kept, held)
        assert low < chosen < high
        errors = {r: (rest @ fit(kept, r).mT - y[:, 55:]).norm() for r in RIDGES}
        assert errors[chosen] <= min(errors.values()) * (1 + 1e-6)
