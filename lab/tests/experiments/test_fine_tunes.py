"""Fine-tune after fine-tune with a small random network: accounting, resuming, the table."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.learning import Interrupted, Quiet
from superpose_lab.collect import collect
from superpose_lab.data.clinc150 import Clinc150, Sentences
from superpose_lab.data.drawn import DrawnTasks, Split, Splits
from superpose_lab.experiments import fine_tunes
from superpose_lab.experiments.fine_tunes import (
    FineTunes,
    Problem,
    chosen_method,
    problem,
    run,
    tune,
)
from superpose_lab.experiments.storage import round_weights, rounded, stored
from superpose_lab.figures.fine_tunes import draw, points, read, rival, table
from superpose_lab.networks.adapters import Adapted
from superpose_lab.results import Results

TRUNK = 4 * (5 * 16 + 16 + 16 * 16 + 16)  # bytes
HEAD = 4 * (16 * 2 + 2)


def network() -> nn.Module:
    torch.manual_seed(0)
    parts = {"one": nn.Linear(5, 16), "act": nn.ReLU(), "two": nn.Linear(16, 16), "also": nn.ReLU()}
    net = nn.Sequential()
    for name, part in parts.items():
        net.add_module(name, part)
    net.add_module("head", nn.Linear(16, 2))
    return net


def split(seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(240) % 6
    centres = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    return Split(centres[y] + 0.3 * torch.randn(240, 5, generator=generator), y)


def clusters(settings: FineTunes, validation: bool) -> DrawnTasks:
    return DrawnTasks(
        "clusters",
        Splits(split(1), split(2), split(3)),
        2,
        settings.tasks,
        period=20,
        batch_size=16,
        seed=settings.seed,
        test_on="validation" if validation else "test",
    )


SMALL = Problem(network, clusters, "head", True, steps=20, batch_size=16)
METHODS = {
    "separate": {},
    "trunk": {},
    "lora": {"rank": 2},
    "scrambled": {"projection": True},
}


def settings(method: str, **options) -> FineTunes:
    given = {"lr": 1e-2, "tasks": 3} | METHODS[method] | options
    return FineTunes(net="mlp", method=method, **given)


def learn(out: Path, method: str, **options):
    return run(settings(method, **options), out, given=SMALL, display=Quiet())


@pytest.mark.parametrize("method", METHODS)
def test_a_run_learns_its_tasks_and_counts_its_bytes(method, tmp_path):
    outcome = learn(tmp_path, method)
    assert outcome.result["mean_when_learned"] > 0.85
    found = json.loads((tmp_path / "storage.json").read_text())
    low_rank = 4 * 2 * (5 + 16 + 16 + 16)
    biases = 4 * 32
    shared, own = {
        "separate": (0, TRUNK + HEAD),
        "trunk": (TRUNK + HEAD, HEAD),
        "lora": (TRUNK + HEAD, low_rank + biases + HEAD),
        "scrambled": (TRUNK + HEAD, biases + HEAD),
    }[method]
    expected = {"network": TRUNK + HEAD, "shared": shared, "per_task": own}
    learning = 4 * 2 * (5 * 5 + 16 * 16) if method == "scrambled" else 0
    assert found["bytes"] == expected | {"total": shared + 3 * own, "learning": learning}
    if method == "separate":
        assert "eight_bits" not in found
    else:
        assert abs(found["eight_bits"]["mean_all"] - outcome.result["mean_all"]) < 0.05
        assert found["eight_bits"]["bytes"] < found["bytes"]["total"]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(method, tmp_path):
    learn(tmp_path / "whole", method)
    steps = iter(range(33))  # in the middle of the second task
    with pytest.raises(Interrupted):
        run(
            settings(method),
            tmp_path / "stopped",
            given=SMALL,
            display=Quiet(),
            stop=lambda: next(steps, None) is None,
        )
    assert not (tmp_path / "stopped" / "result.json").exists()
    learn(tmp_path / "stopped", method)
    for name in ("result.json", "metrics.jsonl", "storage.json"):
        whole, stopped = (tmp_path / part / name for part in ("whole", "stopped"))
        assert whole.read_bytes() == stopped.read_bytes()


def test_a_longer_run_of_an_independent_method_begins_with_the_shorter_one(tmp_path):
    few = learn(tmp_path / "few", "lora").result
    many = run(
        replace(settings("lora"), tasks=5), tmp_path / "many", given=SMALL, display=Quiet()
    ).result
    assert many["final"][:3] == few["final"]


def test_frozen_tensors_of_separate_networks_are_stored_once():
    net = network()
    net.one.requires_grad_(False)
    found = stored(net, nn.ModuleList([net] * 3), 3, learning=0)
    assert found["shared"] == 4 * (5 * 16 + 16)
    assert found["total"] == 3 * (TRUNK + HEAD) - 2 * found["shared"]


def test_rounding_keeps_each_row_within_half_a_step_and_leaves_the_model_alone():
    torch.manual_seed(0)
    rows = torch.randn(7, 50) * torch.logspace(-3, 3, 7)[:, None]
    for bits in (4, 8):
        found, step = rounded(rows, bits), rows.abs().amax(1) / (2 ** (bits - 1) - 1)
        assert ((found - rows).abs().amax(1) <= 0.5001 * step).all()
        assert all(len(row.unique()) <= 2**bits for row in found)
    model = sp.superpose(network(), tasks=2, private_layers=["head"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = round_weights(model, 4)
    assert made is not None
    assert not made[0].one.weight.equal(model.one.weight)
    assert len(made[0].one.weight.unique()) <= 5 * 16
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    assert round_weights(network(), 8) is None


def test_adapters_in_eight_bits_are_counted_with_their_scales():
    made = round_weights(Adapted(network(), 1, rank=2, private=["head"]), 8)
    assert made is not None
    numbers, scales = 2 * (5 + 16 + 16 + 16) + 2 * 16, 4 * 2 + 2
    assert made[1] == 3 * numbers - 4 * scales


def test_tuning_is_by_validation_rows_of_other_tasks(tmp_path, monkeypatch):
    monkeypatch.setitem(fine_tunes.PROBLEMS, "mlp", SMALL)
    grid = (1e-5, 1e-2)
    found = tune(replace(settings("lora"), lr=None), tmp_path / "lora.json", grid)
    assert found["lr"] == 1e-2
    assert found["about"]["seed"] == 1000
    again = run(
        replace(settings("lora"), seed=1000), validation=True, given=SMALL, display=Quiet()
    ).result["mean_all"]
    assert found["mean_all"]["0.01"] == again
    monkeypatch.setattr(fine_tunes, "run", None)  # nothing is tried twice
    assert tune(settings("lora"), tmp_path / "lora.json", grid) == found


def test_superposed_is_the_family_with_a_base_and_the_options_that_are_given(monkeypatch):
    asked = []
    asking = functools.wraps(sp.superpose)(lambda *a, **named: asked.append(named))
    monkeypatch.setattr("superpose.learning.methods.superpose", asking)
    options = {"rank": 2, "centre": "task", "options": '{"conv": "channel"}'}
    superposed = FineTunes(net="mlp", method="superposed", projection=True, **options)
    chosen = chosen_method(superposed, ["head"])
    chosen.make(network(), 3, 7)
    given = {"base": True, "rank": 2, "centre": "task", "conv": "channel"}
    assert asked == [{"seed": 7, "private_layers": ["head"], **given}]
    assert chosen.name == "hadamard+projection"
    assert superposed.label == "superposed-hadamard-projection-centre-task-conv-channel-r2"
    chosen_method(replace(superposed, method="scrambled", rank=0), []).make(network(), 3, 7)
    assert asked[1] == {"seed": 7, "private_layers": [], "conv": "channel"}


@pytest.mark.parametrize("validation", [False, True])
def test_domains_of_clinc150_come_one_after_the_other(validation, monkeypatch):
    domains = {"a": ["a0", "a1"], "b": ["b0", "b1"], "c": ["c0", "c1"]}
    none = Sentences([], [])
    monkeypatch.setattr(fine_tunes, "clinc150", lambda: Clinc150(domains, none, none, none))
    rows = Splits(split(10), split(11), split(12))
    monkeypatch.setattr(fine_tunes, "_sentences", lambda: rows)
    given = FineTunes(net="clinc150", method="trunk", tasks=3)
    stream = problem(given).stream(given, validation)
    tested = rows.validation if validation else rows.test
    for task in range(3):
        x, y = stream.test(task)
        for row, label in zip(x[:5], y[:5], strict=True):
            (place,) = (tested.x == row).all(1).nonzero()[0]
            assert tested.y[place] == 2 * task + label
    with pytest.raises(sp.SuperposeError, match="tasks=4: CLINC150 has 3 domains"):
        problem(given).stream(replace(given, tasks=4), validation)
    drawn = problem(given).stream(replace(given, tasks=4, group=3), validation)
    assert {len(one) for one in drawn.sets} == {3}


def test_the_task_that_a_network_comes_with_is_kept_by_its_base(tmp_path):
    rows = split(3)
    known = Split(rows.x[rows.y < 2], rows.y[rows.y < 2])
    about = replace(SMALL, known=lambda: known)
    given = FineTunes(net="mlp", method="superposed", lr=1e-2, tasks=2)
    run(given, tmp_path, given=about, display=Quiet())
    was = float((network()(known.x).argmax(1) == known.y).float().mean())
    assert json.loads((tmp_path / "storage.json").read_text())["base"] == pytest.approx(was)


@pytest.mark.parametrize("validation", [False, True])
def test_classes_of_cifar100_come_ten_at_a_time_after_cifar10(validation, monkeypatch):
    def rows(count):
        y = torch.arange(count) % 100
        images = y.to(torch.uint8).view(-1, 1, 1, 1).expand(count, 3, 2, 2)
        return Split(images, y)

    monkeypatch.setattr(fine_tunes, "splits", lambda name: Splits(rows(1800), rows(200), rows(300)))
    given = FineTunes(net="resnet16", method="superposed", tasks=3)
    stream = problem(given).stream(given, validation)
    assert (stream.tasks, len(stream)) == (3, 3000)
    for task in range(3):
        x, y = stream.test(task)
        assert len(y) == (20 if validation else 30)
        assert torch.equal(((x[:, 0, 0, 0] + 1) * 127.5).round().long(), y + 10 * (task + 1))
    assert len(stream.data[0][1]) == (180 if validation else 200)


def test_a_run_without_a_learning_rate_is_refused():
    with pytest.raises(sp.SuperposeError, match="give lr, or find one with tune"):
        run(replace(settings("lora"), lr=None), given=SMALL)


def test_the_table_sets_superposition_beside_adapters_of_as_many_bytes(tmp_path):
    for rank in (1, 2, 9):
        for seed in (0, 1):
            out = tmp_path / "mlp" / "3-tasks" / f"lora-r{rank}" / f"seed-{seed}"
            learn(out, "lora", rank=rank, seed=seed)
    learn(tmp_path / "mlp" / "2-tasks" / "scrambled" / "seed-0", "scrambled", tasks=2)
    results = Results(tmp_path / "results")
    collect([tmp_path / "mlp"], results)
    found = points(read(results))
    (own,) = (point for point in found if point.label == "scrambled")
    beside = rival(own, found)
    assert beside is not None
    assert (beside.label, beside.tasks, len(beside.end)) == ("lora-r1", 2, 2)
    result = json.loads(
        (tmp_path / "mlp" / "3-tasks" / "lora-r1" / "seed-0" / "result.json").read_text()
    )
    assert beside.end[0] == pytest.approx(50 * sum(result["final"][:2]), abs=1e-3)
    assert beside.learned[0] == pytest.approx(
        50 * sum(result["matrix"][k][k] for k in range(2)), abs=1e-3
    )
    assert beside.total >= own.total
    assert f"{beside.mean:.1f}" in table(found)
    draw(tmp_path / "results", fewest=1)
    assert (tmp_path / "results" / "figures" / "fine-tunes.svg").exists()
