"""`superpose-lab demo`: it compares, draws, stops, goes on, and says what it uses."""

import json
import re
import shlex

import pytest

from superpose import SuperposeError
from superpose.learning import Interrupted
from superpose_lab import demo
from superpose_lab.cli import main, parse
from superpose_lab.cli.demo import report


def test_the_demo_compares_three_methods_and_draws_them(tmp_path, capsys):
    small = ["--dataset", "digits", "--tasks", "2", "--steps", "60", "--units", "32"]
    main(["demo", *small, "--jobs", "1", "--out", str(tmp_path), "--json"])
    results = json.loads(capsys.readouterr().out)["results"]
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    for name in ("standard", "binary", "ours"):
        saved = json.loads((tmp_path / name / "result.json").read_text())
        assert saved.items() <= results[name].items()
        assert saved["method"] == ("hadamard+projection" if name == "ours" else name)
    report(results, tmp_path, quiet=False)
    printed = capsys.readouterr().out
    for name, result in results.items():
        row = next(line for line in printed.splitlines() if line.startswith(f" {name} "))
        assert f"{100 * result['mean_all']:.1f} %" in row
        assert f"{100 * result['first_task']:.1f} %" in printed[printed.index("Learned: ") :]
    assert printed.index("Learned: ") > printed.index(" ours ")
    parse(shlex.split(printed.splitlines()[-1])[1:])


def test_a_demo_that_was_stopped_goes_on_as_it_says(tmp_path, capsys, monkeypatch):
    def stop(*_: object) -> None:
        raise Interrupted("stopped")

    call = ["demo", "--dataset", "digits", "--tasks", "2", "--steps", "12", "--units", "16"]
    with monkeypatch.context() as patch:
        patch.setattr("superpose_lab.experiments.jobs.run", stop)
        with pytest.raises(SystemExit):
            main([*call, "--jobs", "1", "--out", str(tmp_path / "a folder")])
    command = shlex.split(capsys.readouterr().err.splitlines()[-1])
    assert command[0] == "superpose-lab"
    main([*command[1:], "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["dataset"], result["out"]) == ("digits", str(tmp_path / "a folder"))
    assert result["results"]["binary"]["steps"] == 24


def test_a_demo_to_go_on_with_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--resume"])
    assert "--resume needs --out DIR" in capsys.readouterr().err


def test_the_demo_says_which_data_it_uses(monkeypatch):
    def offline(name, data_dir):
        raise SuperposeError("mnist could not be fetched: nowhere")

    monkeypatch.setattr(demo, "load", offline)
    name, reason = demo.choose(None)
    assert name == "digits"
    assert reason == "mnist could not be fetched"
    monkeypatch.setattr(demo, "load", lambda name, data_dir: None)
    assert demo.choose(None) == ("mnist", "")


def test_a_log_has_short_lines_and_no_codes_of_terminals(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    small = ["--dataset", "digits", "--tasks", "2", "--steps", "40", "--units", "32"]
    main(["demo", *small, "--jobs", "1", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80
    assert not re.search(r"[\x1b\r\b]", printed)
    for name in ("standard", "binary", "ours"):
        written = [line for line in lines if line.startswith(f"{name}: ")]
        assert len(written) <= 4  # the first, the last, and few between
        assert written[-1].endswith(", done")
