"""The search for the best strength and learning rate."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from scripts import loaded

tuning = loaded("tuning")


def test_neighbours_go_by_one_and_three() -> None:
    up, down = [0.03], [1000.0]
    while up[-1] < 300:
        up.append(tuning.neighbour(up[-1], True))
    while down[-1] > 0.001:
        down.append(tuning.neighbour(down[-1], False))
    assert up == [0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300]
    assert down == [1000, 300, 100, 30, 10, 3, 1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001]


def test_the_best_beats_its_neighbours_and_no_point_is_scored_twice() -> None:
    scored = []

    def score(point):
        scored.append(tuple(point.values()))
        strength, lr = (math.log10(value) for value in point.values())
        return -((strength - 2) ** 2) - (lr + 3 + 0.2 * (strength - 2)) ** 2

    best = tuning.climb({"strength": 1.0, "lr": 1e-4}, score)
    assert best == {"strength": 100, "lr": 1e-3}
    assert len(scored) == len(set(scored))
    beside = {(30, 1e-3), (300, 1e-3), (100, 3e-4), (100, 3e-3)}
    assert beside <= set(scored)


def test_a_score_that_rises_for_ever_ends_far_away() -> None:
    best = tuning.climb({"strength": 1.0}, lambda point: -point["strength"])
    assert best == {"strength": 0.001}
    assert not tuning.near(best["strength"], 1.0)


def test_every_search_begins_on_the_grid() -> None:
    for search in tuning.SEARCHES.values():
        for value in search.begin.values():
            assert tuning.neighbour(tuning.neighbour(value, True), False) == value


def test_a_search_writes_what_it_tried_and_the_run_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = tuning.SEARCHES["fifty-si"]
    small = replace(search.settings, dataset="digits", units=16, tasks=2, steps=8, batch_size=16)
    monkeypatch.setitem(tuning.SEARCHES, "fifty-si", replace(search, settings=small))
    asked = tuning.Tuning("fifty-si", tmp_path / "runs", tmp_path / "out")
    asked.run()
    written = (tmp_path / "out" / "fifty-si.json").read_text()
    found = json.loads(written)
    assert "--steps 2 " in found["short"]
    assert "--seed 1" in found["short"]
    tried = {(each["strength"], each["lr"]): each["mean_last_ten"] for each in found["tried"]}
    best = (found["best"]["strength"], found["best"]["lr"])
    assert tried[best] == max(tried.values())
    assert f"--strength {best[0]}" in found["full"]["command"]
    assert "--seed" not in found["full"]["command"]
    asked.run()
    assert (tmp_path / "out" / "fifty-si.json").read_text() == written
