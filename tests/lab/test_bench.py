"""`superpose bench`: ratios that are ratios, and a check that fails when it should."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import superpose as sp
from superpose.cli.bench import BenchCommand
from superpose.lab import bench


@pytest.fixture
def pair(monkeypatch):
    """Comparisons whose actions take the time they are told, on a clock of their own."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(bench, "time", clock)

    def taking(seconds):
        return lambda: now.__setitem__(0, now[0] + seconds)

    def make(action, baseline, goal, rounds=9):
        return bench.Comparison("a", "b", goal, taking(action), taking(baseline), rounds)

    return make


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


@pytest.fixture
def quick(monkeypatch, pair):
    def replace(*pairs):
        monkeypatch.setattr(bench, "comparisons", lambda device, rounds: iter(pairs))
        monkeypatch.setattr(bench, "imports", lambda: bench.measure(pair(0.001, 0.001, 5.0, 3)))
        monkeypatch.setattr(bench, "first_use", lambda: {"binary": 0.1})

    return replace


def test_the_command_writes_json_and_check_fails_on_a_clear_miss(quick, pair, tmp_path, capsys):
    quick(pair(0.004, 0.001, goal=1.1))
    out = tmp_path / "bench.json"
    BenchCommand(rounds=5, out=out, json=True).run()
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert [row["met"] for row in printed["rows"]] == [False, True]
    assert "**missed**" in bench.table(printed)
    with pytest.raises(sp.SuperposeError, match="slower than their goals: a"):
        BenchCommand(rounds=5, check=True).run()
    assert "1.1" in capsys.readouterr().out
    quick(pair(0.001, 0.004, goal=1.1))
    BenchCommand(rounds=5, check=True).run()


def test_bad_options():
    with pytest.raises(sp.SuperposeError, match="at least 1"):
        BenchCommand(rounds=0).run()
    with pytest.raises(sp.SuperposeError, match="--device nonsense"):
        BenchCommand(device="nonsense").run()
