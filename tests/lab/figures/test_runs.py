"""Where the run of a setting lies, and runs that are adopted from elsewhere."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.figures.fakes import fake

from superpose.errors import SuperposeError
from superpose.lab.experiments.settings import Settings
from superpose.lab.figures import (
    runs,
)
from superpose.lab.figures.items import ITEMS
from superpose.lab.figures.runs import KEPT, Finished, Wanted, finished, folder, place
from superpose.learning.run_directory import locked


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        (Settings(experiment="permuting-mnist"), "permuting-mnist/binary-u256"),
        (
            Settings(experiment="permuting-mnist", tasks=50, steps=1000, lr=1e-4),
            "permuting-mnist/binary-u256",
        ),
        (
            Settings(experiment="permuting-mnist", method="binary+ewc", hidden=3, strength=2.0),
            "permuting-mnist/binary+ewc-u256-h3-strength2.0",
        ),
        (Settings(experiment="icifar", width=16, steps=1000), "icifar/binary-w16-s1000"),
        (
            Settings(experiment="rotating-fashion", method="fast", learnable=True, optimiser="sgd"),
            "rotating-fashion/fast-u256-sgd-learnable",
        ),
    ],
)
def test_a_folder_says_what_is_not_as_in_the_paper(settings: Settings, label: str) -> None:
    assert folder(settings) == label


def test_runs_of_different_settings_have_different_folders() -> None:
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
    ]
    folders = {folder(replace(base, **change)) for change in changed}
    assert len(folders | {folder(base)}) == len(changed) + 1


def test_another_run_in_the_place_is_refused(tmp_path: Path) -> None:
    settings = ITEMS["fig-methods"].wanted("paper")[0].settings
    fake(tmp_path, settings)
    config = place(tmp_path, settings) / "config.json"
    config.write_text(config.read_text().replace('"units": 256', '"units": 64'))
    with pytest.raises(SuperposeError, match="units=64, not 256"):
        Finished(tmp_path).of(settings)


def test_a_run_without_a_rate_for_low_rank_parts_is_not_one_with_it(tmp_path: Path) -> None:
    settings = Settings(experiment="permuting-mnist", rank=2, rank_lr=3e-3)
    fake(tmp_path, settings)
    config = place(tmp_path, settings) / "config.json"
    config.write_text(config.read_text().replace('"rank_lr": 0.003, ', ""))
    with pytest.raises(SuperposeError, match=r"rank_lr=None, not 0\.003"):
        finished(tmp_path, settings)


def test_runs_from_elsewhere_are_adopted(tmp_path: Path) -> None:
    settings = Settings(experiment="icifar", method="multihead", width=16, steps=1000, seed=4)
    fake(tmp_path / "elsewhere", settings)
    there = place(tmp_path / "elsewhere", settings)
    config = json.loads((there / "config.json").read_text())
    config["command"] = "superpose run icifar --out /somewhere/else"
    (there / "config.json").write_text(json.dumps(config))
    (there / "checkpoint.pt").write_bytes(b"large")
    (there / "timings.json").write_text("{}")
    (there.parent / "result.json").write_text("{}")  # a summary over seeds is no run
    root = tmp_path / "runs"
    assert runs.adopt(tmp_path / "elsewhere", root) == [place(root, settings)]
    assert sorted(p.name for p in place(root, settings).iterdir()) == sorted(KEPT)
    adopted = json.loads((place(root, settings) / "config.json").read_text())
    told = "superpose run icifar --method multihead --width 16 --steps 1000 --seed 4"
    assert adopted["command"] == told
    assert runs.adopt(tmp_path / "elsewhere", root) == []
    other = tmp_path / "in use"
    place(other, settings).mkdir(parents=True)
    with locked(place(other, settings)), pytest.raises(SuperposeError, match="in use by another"):
        runs.adopt(tmp_path / "elsewhere", other)
    assert [path.name for path in place(other, settings).iterdir()] == [".lock"]


def test_seeds_come_first_to_last_over_all_methods(tmp_path: Path) -> None:
    wanted = [Wanted(Settings(experiment="icifar", width=w), seeds=2) for w in (4, 8)]
    order = [(s.seed, s.width) for s in Finished(tmp_path).missing(wanted)]
    assert order == [(0, 4), (0, 8), (1, 4), (1, 8)]
