"""Benchmarks of speed: ratios that are ratios, and many tasks that are as many as they say."""

import copy
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scripts import loaded

import superpose as sp
from superpose_lab.networks import MLP, ResNet18

speed, comparisons, many_tasks, timing = map(
    loaded, ("speed", "comparisons", "many_tasks", "timing")
)
ManyTasks = many_tasks.ManyTasks


@pytest.fixture
def pair(monkeypatch):
    """Comparisons whose actions take the given time, on a clock of their own."""
    now = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def taking(seconds):
        return lambda: now.__setitem__(0, now[0] + seconds)

    def make(action, baseline, goal, rounds=9):
        return timing.Comparison("a", "b", goal, rounds, lambda: (taking(action), taking(baseline)))

    return make


def test_a_ratio_is_the_median_of_interleaved_rounds(pair):
    order = []
    slow = pair(0.004, 0.002, goal=1.5, rounds=4)
    action, baseline = slow.make()
    noted = (lambda: (order.append("a"), action()), lambda: (order.append("b"), baseline()))
    timing.measure(replace(slow, make=lambda: noted))
    assert order == ["a", "b"] * timing.WARM_UP + ["b", "a", "a", "b", "b", "a", "a", "b"]
    measured = timing.measure(pair(0.004, 0.002, goal=1.5))
    assert measured.ratio == pytest.approx(2)
    assert measured.milliseconds == pytest.approx(4)
    assert not measured.met
    assert timing.measure(pair(0.002, 0.004, goal=1.0)).met


def test_every_row_of_the_table_runs():
    rows = list(comparisons.comparisons(torch.device("cpu"), rounds=1))
    assert len(rows) == 22
    for row in rows:
        if "ResNet" not in row.name and "rotation" not in row.name:  # those take seconds
            for action in row.make():
                action()
    assert comparisons.memory()["share_of_64_models"] < 1 / 60


def row_named(*words):
    rows = comparisons.comparisons(torch.device("cpu"), 1)
    return next(row for row in rows if all(word in row.name for word in words))


def test_the_mixed_batch_of_the_benchmark_is_the_models_answer():
    x = torch.randn(128, 784, generator=torch.Generator().manual_seed(0))
    models = [MLP(784, 8, 10).eval() for _ in range(64)]
    tasks = torch.arange(128) % 64
    grouped = comparisons._grouped(models, x, tasks)()
    torch.testing.assert_close(grouped[70], models[6](x[70:71])[0])
    mixed, plain = row_named("128 rows").make()
    assert mixed().shape == plain().shape == (128, 10)


def test_texts_are_as_long_as_said_and_differ_between_tasks():
    many, plain = row_named("generating", "of 16 tasks").make()
    one, _ = row_named("generating", "of one task").make()
    assert many().shape == one().shape == plain().shape == (16, 8 + 16)
    assert not torch.equal(many()[:, 8:], plain()[:, 8:])


@pytest.fixture(params=["MLP", "ResNet-18"])
def several(request, tmp_path):
    """Few tasks of small networks, with norms and without."""
    torch.manual_seed(0)
    if request.param == "MLP":
        return ManyTasks("MLP", lambda: MLP(12, 8, 10, bias=True), 3, torch.randn(6, 12), tmp_path)
    images = torch.randn(6, 3, 8, 8)
    return ManyTasks("ResNet-18", lambda: ResNet18(width=4), 3, images, tmp_path)


def test_every_row_of_many_tasks_runs(several):
    rows = [*several.comparisons(1), *several.amounts()]
    assert len({row.name for row in rows}) == 10
    for row in several.comparisons(1):
        for action in row.make():
            action()
    found = {row.name: row.as_dict() for row in several.amounts()}
    assert all(row["value"] > 0 for row in found.values() if row["unit"] == "s")
    assert all(row["low"] <= row["value"] <= row["high"] for row in found.values())


def test_learned_tasks_have_all_changed_and_declared_ones_have_not(several):
    for model, same in ((several.declared, True), (several.learned, False)):
        first, *others = (model.private_parameters(task) for task in range(3))
        assert first
        for other in others:
            found = [
                (a == b).all() if same else (a != b).any()
                for a, b in zip(first, other, strict=True)
            ]
            assert all(found)


def test_the_numbers_of_learned_tasks_are_counted(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))
    several = ManyTasks("net", lambda: copy.deepcopy(net), 7, torch.randn(3, 4), tmp_path)
    linear, norm = 4 * 5, 5 * 5 + 2  # a bias, scales, shifts, two statistics; a count of 8 bytes
    assert several.numbers() == 4 * (linear + norm) + 7 * 4 * norm
    name = "file, net, 7 tasks learned"
    row = next(row for row in several.amounts() if row.name == name)
    size = several._save(several.learned).stat().st_size
    assert row.as_dict()["value"] == pytest.approx(size / several.numbers())
    assert sp.unsuperpose(several.learned, 6)[1].num_batches_tracked == 1


def test_memory_is_counted_once():
    net = torch.nn.Linear(4, 5, bias=False)
    net.register_buffer("view", net.weight.detach()[1:])
    assert many_tasks.held(net) == 4 * 4 * 5


def test_the_script_writes_the_rows_and_checks_goals(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(many_tasks, "networks", lambda device, folder: [])
    monkeypatch.setattr(comparisons, "imports", lambda: pair(1, 1, 9))
    slow = pair(0.004, 0.002, goal=1.5)
    monkeypatch.setattr(comparisons, "comparisons", lambda device, rounds: iter([slow]))
    out = tmp_path / "bench.json"
    with pytest.raises(SystemExit, match="goals missed: a"):
        speed.Speed(only=("a",), check=True, out=out).run()
    result = json.loads(out.read_text())
    assert [row["ratio"] for row in result["rows"]] == [2.0, 1.0]
    result["memory"] = {"share_of_64_models": 0.01}
    assert "| a | b | ≤ 1.50 | 2.00 **missed** | 2.00–2.00 |" in speed.table(result)
    with pytest.raises(SystemExit, match="no row has this in its name"):
        speed.Speed(only=("zzz",)).run()
