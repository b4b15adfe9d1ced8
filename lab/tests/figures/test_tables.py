"""Tables of runs and of recognition: rows are the measures."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from fakes import fake, fake_all

from superpose import SuperposeError
from superpose_lab.experiments.labels import run_name
from superpose_lab.experiments.recognition.protocols import PAPER
from superpose_lab.experiments.settings import Settings
from superpose_lab.figures import recognised
from superpose_lab.figures.catalogue import FIGURES
from superpose_lab.figures.recognised import Part, measures_of
from superpose_lab.figures.table import Table, grid
from superpose_lab.results import Results


def table(name: str, folder: Path) -> Table:
    return FIGURES[name].table(name, "paper", Results(folder))


def test_mean_and_deviation_are_over_seeds(tmp_path: Path) -> None:
    settings = FIGURES["fig-methods"].wanted("paper")[1].settings
    ends = [0.80, 0.83, 0.87]
    for seed, end in enumerate(ends):
        fake(tmp_path, replace(settings, seed=seed), end=end)
    found = table("fig-methods", tmp_path)
    row = next(row for row in found.rows if row["method"] == "binary")
    assert row["first_task"].mean == pytest.approx(fmean(ends))
    assert row["first_task"].deviation == pytest.approx(stdev(ends))
    assert row["learned"].mean == pytest.approx(0.95 - 0.02 * (0.95 - fmean(ends)))
    curve = found.picture["curves"]["binary-u256"]
    assert curve["deviation"][-1] == pytest.approx(stdev(ends))
    assert curve["steps"][-1] == 50_000
    assert len(found.missing) == 21
    assert "permuting-mnist/standard-u256/seed-2" in found.missing


def test_rotating_streams_are_averaged_over_the_last_ten_turns(tmp_path: Path) -> None:
    fake(tmp_path, Settings(experiment="rotating-mnist"), start=1.0, end=0.0)
    row = next(r for r in table("fig-rotating-mnist", tmp_path).rows if r["method"] == "binary")
    last = [1 - step / 50_000 for step in range(40_100, 50_001, 100)]
    assert row["mean"].mean == pytest.approx(fmean(last))
    assert row["swing"].mean == pytest.approx(max(last) - min(last))


def test_private_numbers_are_counted(tmp_path: Path) -> None:
    fake_all("own-numbers", tmp_path)
    rows = table("own-numbers", tmp_path).rows
    assert [row["numbers"] for row in rows if row["tasks"] == 50] == [0, 20, 40, 0, 20]
    assert {row["rate"] for row in rows} >= {"0.0001, constant", "0.001, warm-cosine"}


def test_runs_of_other_settings_are_refused(tmp_path: Path) -> None:
    settings = FIGURES["fig-methods"].wanted("paper")[0].settings
    fake(tmp_path, settings)
    path = tmp_path / "permuting-mnist.jsonl"
    path.write_text(path.read_text().replace('"units": 256', '"units": 64'))
    with pytest.raises(SuperposeError, match="units=64, not 256"):
        Results(tmp_path).of(settings)
    path.write_text(path.read_text().replace('"first_task"', '"task"'))
    path.write_text(path.read_text().replace('"units": 64', '"units": 256'))
    with pytest.raises(SuperposeError, match="has no first_task: take its line out"):
        Results(tmp_path).of(settings)
    path.write_text(path.read_text()[:50])
    with pytest.raises(SuperposeError, match=r"line 1 of .*permuting-mnist\.jsonl is damaged"):
        Results(tmp_path).of(settings)


def test_a_run_without_a_rate_for_low_rank_parts_is_not_one_with_it(tmp_path: Path) -> None:
    settings = Settings(experiment="permuting-mnist", rank=2, rank_lr=3e-3)
    fake(tmp_path, settings)
    path = tmp_path / "permuting-mnist.jsonl"
    path.write_text(path.read_text().replace('"rank_lr": 0.003, ', ""))
    with pytest.raises(SuperposeError, match=r"rank_lr=None, not 0\.003"):
        Results(tmp_path).of(settings)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(experiment="permuting-mnist", tasks=50, steps=1000, lr=1e-4), "binary-u256"),
        (
            Settings(experiment="permuting-mnist", method="binary+ewc", hidden=3, strength=2.0),
            "binary+ewc-u256-h3-strength2.0",
        ),
        (Settings(experiment="icifar", width=16, steps=1000), "binary-w16-s1000"),
        (
            Settings(experiment="rotating-fashion", method="fast", learnable=True, optimiser="sgd"),
            "fast-u256-sgd-learnable",
        ),
    ],
)
def test_a_name_tells_the_settings_that_are_not_the_papers(settings: Settings, name: str) -> None:
    assert run_name(settings) == name


def test_runs_of_different_settings_have_different_names() -> None:
    base = Settings(experiment="permuting-mnist")
    changed: list[dict[str, Any]] = [
        {"method": "si"},
        {"dataset": "digits"},
        {"units": 8},
        {"hidden": 1},
        {"tasks": 2},
        {"steps": 2},
        {"batch_size": 2},
        {"optimiser": "adam"},
        {"lr": 0.5},
        {"schedule": "cosine"},
        {"reset": True},
        {"strength": 1.0},
        {"learnable": True},
        {"gain": 2.0},
        {"label_smoothing": 0.1},
        {"evaluate_every": 7},
        {"private": "per-task"},
        {"centre": "rows"},
        {"min_inputs": 64},
        {"rank": 2},
        {"rank": 2, "rank_lr": 0.01},
        {"tasks_found": True},
    ]
    names = {run_name(replace(base, **change)) for change in changed}
    assert len(names | {run_name(base)}) == len(changed) + 1


MEASURES = {
    "told_all": 97.0,
    "accuracy": {"told": 98.2, "inputs": 98.15, "shortlist": 90.0, "entropy": 80.0},
    "task_right": {"inputs": 99.9, "shortlist": 91.0, "entropy": 81.0, "log-sum-exp": 80.0},
    "false_alarms": 0.5,
    "auroc_other_data": 0.995,
    "auroc_other_tasks": 0.98,
    "numbers_a_task": 2000,
    "bytes_a_task": 8000,
    "numbers_for_recognition": 1571,
    "bytes_for_recognition": 6284,
    "bytes_of_all": 5_000_000,
}


def part(name: str, measures: dict[str, Any] | None) -> Part:
    return Part(name, PAPER[name], measures)


def test_a_row_of_recognition_is_its_measures() -> None:
    parts = [part("permuted-10", MEASURES), part("permuted-10-wide", None)]
    first, second = (found := recognised.after_learning(parts)).rows
    assert (first["told"], first["inputs"], first["task_right"]) == (98.2, 98.15, 99.9)
    assert (second["units"], second["told"], second["seeds"]) == ("2 × 1000", None, 0)
    cells = "| permuted-10 | 10 | 2 × 256 | – | 98.20 | 98.15 | 99.90 | – | 0.9950 | 0.9800 |"
    assert cells in found.markdown()


def test_turned_tasks_have_degrees() -> None:
    measures = MEASURES | {"degrees": {"0": 3, "10": 1}, "degrees_off_if_wrong": 10.0}
    turned = recognised.after_learning([part("rotated-36", measures)])
    assert turned.picture["degrees"] == {"rotated-36": {"0": 3, "10": 1}}
    assert turned.rows[0]["degrees_off_if_wrong"] == 10.0


def test_evidence_is_a_row_each_with_the_numbers_kept_for_it() -> None:
    found = recognised.by_evidence([part("permuted-10", MEASURES)])
    assert {row["evidence"]: (row["accuracy"], row["numbers"]) for row in found.rows} == {
        "inputs": (98.15, 1571),
        "shortlist": (90.0, 1571),
        "entropy": (80.0, 0),
        "log-sum-exp": (None, 0),
    }


def test_evidence_of_several_methods_is_a_row_each() -> None:
    methods = {"hadamard+projection": MEASURES, "hadamard+projection+doubt": MEASURES}
    found = recognised.by_evidence([part("doubt", {"methods": methods})])
    assert [row["label"] for row in found.rows] == [name for name in methods for _ in range(4)]


def test_measures_of_another_protocol_are_refused(tmp_path: Path) -> None:
    declared = PAPER["permuted-10"].declared()
    made = {"name": "permuted-10", "seed": 0, "command": "c", "measures": MEASURES}
    results = Results(tmp_path)
    results.add("recognition", [made | {"protocol": declared | {"evidence": ["gradient"]}}])
    assert measures_of(results, "permuted-10", PAPER["permuted-10"]) == MEASURES
    results.add("recognition", [made | {"protocol": declared | {"rows": 20}}])
    with pytest.raises(SuperposeError, match="measured with rows=20, not 10000: take its line out"):
        measures_of(results, "permuted-10", PAPER["permuted-10"])


def test_tables_are_joined_without_rows_that_were_not_run() -> None:
    tables = [recognised.by_evidence([part("permuted-10", m)]) for m in (MEASURES, None)]
    joined = grid(tables, without=("label", "told"), measured=True).splitlines()
    assert len(joined) == 2 + 4
    assert joined[0] == "| evidence | task right, % | accuracy, % | numbers a task for it |"
    assert len(grid(tables).splitlines()) == 2 + 4 + 1
