"""The bench: ratios that are ratios."""

from dataclasses import replace

import pytest
import torch

import superpose as sp
from superpose.lab import bench


def test_a_ratio_is_the_median_of_interleaved_rounds(pair):
    order = []
    slow = pair(0.004, 0.002, goal=1.5, rounds=4)
    noted = replace(
        slow,
        action=lambda: (order.append("a"), slow.action()),
        baseline=lambda: (order.append("b"), slow.baseline()),
    )
    bench.measure(noted)
    assert order == ["a", "b"] * bench.WARM_UP + ["b", "a", "a", "b", "b", "a", "a", "b"]
    measured = bench.measure(pair(0.004, 0.002, goal=1.5))
    assert measured.ratio == pytest.approx(2)
    assert measured.milliseconds == pytest.approx(4)
    assert not measured.met
    assert bench.measure(pair(0.002, 0.004, goal=1.0)).met


def test_every_row_of_the_table_runs():
    rows = list(bench.comparisons(torch.device("cpu"), rounds=1))
    assert len(rows) == 13
    for row in rows:
        if "ResNet" not in row.name and "rotation" not in row.name:  # those take seconds
            row.action()
            row.baseline()
    assert bench.conversion()["megabytes_above_plain"] < 10
    assert bench.memory()["share_of_64_models"] < 1 / 60


def test_the_mixed_batch_of_the_benchmark_is_the_models_answer():
    comparison = next(c for c in bench.comparisons(torch.device("cpu"), 1) if "128 rows" in c.name)
    x = torch.randn(128, 784, generator=torch.Generator().manual_seed(0))
    models = [sp.lab.MLP(784, 8, 10).eval() for _ in range(64)]
    tasks = torch.arange(128) % 64
    grouped = bench._grouped(models, x, tasks)()
    torch.testing.assert_close(grouped[70], models[6](x[70:71])[0])
    assert comparison.action().shape == comparison.baseline().shape == (128, 10)
