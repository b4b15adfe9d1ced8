"""`superpose bench`: it writes JSON, and its check fails when it should."""

import json

import pytest

import superpose as sp
from superpose.cli.bench import BenchCommand
from superpose.lab import bench


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
