"""`superpose-lab run`: its output for people and programs, errors, Ctrl-C."""

import json
import os
import shlex
import signal

import pytest

from superpose.learning import Quiet
from superpose_lab.cli import main

SMALL = ["--dataset", "digits", "--units", "16", "--tasks", "2", "--steps", "12"]


def test_json_is_all_that_is_printed(tmp_path, capsys):
    main(["run", "permuting-mnist", *SMALL, "--out", str(tmp_path), "--json"])
    printed, errors = capsys.readouterr()
    result = json.loads(printed)
    assert errors == ""
    assert result["steps"] == 24
    assert result["timings"]["seconds"] > 0
    assert json.loads((tmp_path / "result.json").read_text()).items() <= result.items()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["about"]["lr"] == 1e-4
    assert config["stream"]["dataset"]["name"] == "digits"


def test_a_person_sees_lines_and_a_table(tmp_path, capsys):
    main(["run", "permuting-mnist", *SMALL, "--method", "si", "--out", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    assert "si: task 2/2, step 24: this task" in printed
    assert "mean all" in printed
    assert "numbers stored" in printed
    main(["run", "permuting-mnist", *SMALL, "--out", str(tmp_path / "quiet"), "--quiet"])
    quiet = capsys.readouterr().out
    assert "step" not in quiet
    assert "mean all" in quiet


def test_an_error_is_one_sentence_and_exit_code_one(tmp_path, capsys):
    call = ["run", "permuting-mnist", *SMALL, "--out", str(tmp_path), "--quiet"]
    main(call)
    for extra, message in (
        ([], "holds a run already: add --resume"),
        (["--resume", "--seed", "3"], "was started with seed=0, not 3"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*call, *extra])
        assert stopped.value.code == 1
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["run", "permuting-mnist", *SMALL, "--resume"])
    assert stopped.value.code == 1
    assert "--resume needs --out" in capsys.readouterr().err


def test_divergence_is_an_error(tmp_path, capsys):
    options = ["--optimiser", "sgd", "--lr", "1e9", "--out", str(tmp_path), "--quiet"]
    with pytest.raises(SystemExit) as stopped:
        main(["run", "permuting-mnist", *SMALL, *options])
    assert stopped.value.code == 1
    assert "learning broke down at step 12" in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    call = ["run", "permuting-mnist", *SMALL, "--method", "binary", "--evaluate-every", "5"]

    class PressesCtrlC(Quiet):
        def show(self, progress):
            if progress.step == 15:
                os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("superpose_lab.cli.run.for_terminal", lambda *_, **__: PressesCtrlC())
        with pytest.raises(SystemExit) as stopped:
            main([*call, "--out", str(tmp_path / "stopped")])
    assert stopped.value.code == 130
    message = capsys.readouterr().err
    assert "stopped after 15 of 24 steps" in message
    command = shlex.split(message.splitlines()[-1])
    assert command[:2] == ["superpose-lab", "run"]
    main([*command[1:], "--quiet"])
    main([*call, "--out", str(tmp_path / "whole"), "--quiet"])
    for name in ("result.json", "metrics.jsonl"):
        whole, stopped = (tmp_path / each / name for each in ("whole", "stopped"))
        assert whole.read_bytes() == stopped.read_bytes()


def test_tasks_are_found_without_being_told(tmp_path, capsys):
    call = ["run", "permuting-mnist", *SMALL, "--method", "binary", "--tasks-found"]
    main([*call, "--out", str(tmp_path)])
    assert "2 contexts begun; changes noticed: 1" in capsys.readouterr().out
    result = json.loads((tmp_path / "result.json").read_text())
    assert [span[:3] for span in result["found"]["spans"]] == [[0, 0, 12], [1, 12, 24]]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["about"]["tasks_found"] is True
    main(["run", "permuting-mnist", *SMALL, "--out", str(tmp_path / "told"), "--quiet"])
    told = json.loads((tmp_path / "told" / "config.json").read_text())
    assert "tasks_found" not in told["about"]  # runs that began before there was such a choice
