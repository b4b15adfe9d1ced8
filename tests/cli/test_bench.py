"""`superpose bench`: it writes JSON, and its check fails when it should."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import superpose as sp
from superpose.cli.bench import BenchCommand
from superpose.lab import bench, many_tasks, timing


@pytest.fixture
def quick(monkeypatch, pair):
    def replace(*pairs, amounts=()):
        many = SimpleNamespace(comparisons=lambda rounds: (), amounts=lambda: amounts)
        monkeypatch.setattr(many_tasks, "networks", lambda device, folder: [many])
        monkeypatch.setattr(bench, "comparisons", lambda device, rounds: iter(pairs))
        monkeypatch.setattr(bench, "imports", lambda: pair(0.001, 0.001, 5.0, 3))
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
    with pytest.raises(sp.SuperposeError, match="goals missed: a"):
        BenchCommand(rounds=5, check=True).run()
    assert "1.1" in capsys.readouterr().out
    quick(pair(0.001, 0.004, goal=1.1))
    BenchCommand(rounds=5, check=True).run()


def test_seconds_and_bytes_have_goals_too(quick, capsys):
    fine = timing.Amount("saving", "–", "s", 3, lambda: [1.0, 2.0, 2.5])
    large = timing.Amount("file", "its numbers", "", 1.01, lambda: [1.2])
    quick(amounts=(fine, large))
    with pytest.raises(sp.SuperposeError, match=r"goals missed: file$"):
        BenchCommand(check=True, json=True).run()
    told = bench.table(json.loads(capsys.readouterr().out))
    assert "| saving | – | ≤ 3 s | 2 s | 1–2.5 |" in told
    assert "| file | its numbers | ≤ 1.01 | 1.2 **missed** | |" in told


def test_rows_are_measured_alone(quick, pair, capsys):
    def never():
        raise AssertionError("made, though it is not wanted")

    unwanted = replace(pair(1, 1, 1.0), name="b", make=never)
    unseen = timing.Amount("c", "–", "s", 3, never)
    quick(replace(pair(0.004, 0.001, 1.1), name="training, MLP"), unwanted, amounts=(unseen,))
    BenchCommand(only=("MLP", "nothing"), json=True).run()
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]] == ["training, MLP"]
    assert found["amounts"] == []
    with pytest.raises(sp.SuperposeError, match="--only LLama: no row has this in its name"):
        BenchCommand(only=("LLama",)).run()


def test_what_lacks_a_package_is_told(quick, pair, capsys):
    quick(replace(pair(0.004, 0.001, 1.1), needs="no_such_package"))
    BenchCommand(rounds=1, check=True).run()
    told = " ".join(capsys.readouterr().out.split())
    assert "not measured: a: no_such_package is not installed (pip install no_such_package)" in told


def test_bad_options():
    with pytest.raises(sp.SuperposeError, match="at least 1"):
        BenchCommand(rounds=0).run()
    with pytest.raises(sp.SuperposeError, match="--device nonsense"):
        BenchCommand(device="nonsense").run()
