"""Runs that a figure lacks are made, resumed and settled; those of a user are left alone."""

import json
import re
import sys
from pathlib import Path

import pytest
from lab.figures.fakes import fake, fake_all

from superpose.errors import SuperposeError
from superpose.lab.experiments.jobs import Job, run
from superpose.lab.figures import (
    document,
    produce,
    runs,
)
from superpose.lab.figures.items import ITEMS
from superpose.lab.figures.runs import Finished, place
from superpose.learning import Interrupted, Quiet


def test_a_stopped_run_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    wanted = ITEMS["fig-size"].wanted("smoke")[0]
    root = produce.runs_root(tmp_path, "smoke")
    path = place(root, wanted.settings)
    straight = run(Job(wanted.settings, None, "straight"), Quiet()).result
    asked = iter([False] * 30)
    with pytest.raises(Interrupted):
        run(
            Job(wanted.settings, path, "stopped", {"resume": True}),
            Quiet(),
            lambda: next(asked, True),
        )
    assert not (path / "result.json").exists()
    settings = Finished(root).missing([wanted])
    assert settings == [wanted.settings]
    done = produce.train_missing(
        ["fig-size"], "smoke", tmp_path, only=[wanted.folder], display=lambda labels: Quiet()
    )
    assert done == 1
    assert json.loads((path / "result.json").read_text()) == json.loads(json.dumps(straight))


def test_a_run_that_ended_in_a_killed_process_is_settled_later(tmp_path: Path) -> None:
    wanted = ITEMS["fig-size"].wanted("smoke")[:2]
    ended, stopped = (place(produce.runs_root(tmp_path, "smoke"), w.settings) for w in wanted)
    fake(produce.runs_root(tmp_path, "smoke"), wanted[0].settings)
    (ended / "checkpoint.pt").write_bytes(b"large")
    stopped.mkdir(parents=True)
    (stopped / "checkpoint.pt").write_bytes(b"needed")
    only = [wanted[0].folder]
    done = produce.train_missing(
        ["fig-size"], "smoke", tmp_path, only=only, display=lambda labels: Quiet()
    )
    assert done == 0
    assert not (ended / "checkpoint.pt").exists()
    assert (stopped / "checkpoint.pt").exists()


def test_runs_of_a_users_own_are_left_alone(tmp_path: Path) -> None:
    wanted = ITEMS["fig-size"].wanted("smoke")[0]
    root = produce.runs_root(tmp_path, "smoke")
    mine, same = root / "mine", root / "again"
    for path, about in ((mine, {}), (same, {"experiment": "permuting-mnist"})):
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps({"about": about, "command": "mine"}))
        for name in ("checkpoint.pt", "metrics.jsonl", "result.json"):
            (path / name).write_text("{}")
    before = {path: path.read_bytes() for path in root.rglob("*.*")}
    produce.train_missing(
        ["fig-size"], "smoke", tmp_path, only=[wanted.folder], display=lambda labels: Quiet()
    )
    assert {path: path.read_bytes() for path in before} == before
    assert runs.adopt(mine, tmp_path / "elsewhere") == []


def test_runs_side_by_side_are_settled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_turn(jobs: list[Job], at_once: int, display: Quiet, keep_going: bool) -> None:
        assert at_once == 2
        assert keep_going
        for job in jobs:
            run(job, display)

    monkeypatch.setattr(produce, "side_by_side", in_turn)
    done = produce.train_missing(
        ["fig-size"], "smoke", tmp_path, at_once=2, only=["u16"], display=lambda labels: Quiet()
    )
    assert done == 2
    assert len(list(tmp_path.rglob("result.json"))) == 2
    assert not list(tmp_path.rglob("checkpoint.pt"))


def test_drawing_only_takes_computed_numbers_from_their_file(tmp_path: Path) -> None:
    produce.make("table1", "smoke", tmp_path)
    path = tmp_path / "smoke" / "table1.json"
    path.write_text(path.read_text().replace("without bias", "free of bias"))
    assert "free of bias" in produce.make("table1", "smoke", tmp_path, compute=False)["about"]
    assert "without bias" in produce.make("table1", "smoke", tmp_path)["about"]


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SuperposeError, match=re.escape("superpose[lab]")):
        produce.make("table1", "smoke", tmp_path)


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path) -> None:
    fake_all("table-average", tmp_path)
    files = [tmp_path / "paper" / f"table-average.{end}" for end in ("png", "svg", "json")]
    produce.make("table-average", "paper", tmp_path)
    before = [path.read_bytes() for path in files]
    produce.make("table-average", "paper", tmp_path)
    assert [path.read_bytes() for path in files] == before


def test_what_was_not_run_is_said_and_not_drawn(tmp_path: Path) -> None:
    found = produce.make("fig-icifar", "paper", tmp_path)
    assert {check["verdict"] for check in found["checks"]} == {"not run yet"}
    assert [path.name for path in (tmp_path / "paper").iterdir()] == ["fig-icifar.json"]
    assert "Status: not run yet." in document.markdown(tmp_path, "paper", "p")
