"""Measures of recognition: made once, by runs that can be stopped, and of one declaration."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from superpose.errors import SuperposeError
from superpose.lab.experiments.recognition.after_learning import AfterLearning
from superpose.lab.experiments.recognition.protocols import SMOKE
from superpose.lab.figures import measured, produce
from superpose.lab.figures.measured import Measured, Measuring
from superpose.learning import Interrupted, Quiet

SMALL = SMOKE["permuted-10"]
assert isinstance(SMALL, AfterLearning)
PROTOCOL = replace(SMALL, tasks=2, rows=20, evidence=("inputs",))


def measuring(root: Path, protocol: AfterLearning = PROTOCOL) -> Measuring:
    return Measuring("small", protocol, root, "superpose reproduce small")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a run that was never stopped."""
    root = tmp_path_factory.mktemp("straight") / "runs"
    measuring(root).run(Quiet())
    return root


def read(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Measured(root).file("small").read_text())
    return found


def test_measures_lie_beside_the_runs_and_say_what_they_are_of(straight: Path) -> None:
    assert Measured(straight).file("small") == straight.parent / "recognise" / "small.json"
    found = read(straight)
    assert found["command"] == "superpose reproduce small"
    assert found["protocol"] == PROTOCOL.declared()
    assert Measured(straight).of("small", PROTOCOL) == found
    run = straight / "recognise" / "small"
    assert json.loads((run / "config.json").read_text())["command"] == "superpose reproduce small"
    assert (run / "checkpoint.pt").exists()
    assert Measured(straight).missing({"small": PROTOCOL, "other": PROTOCOL}) == ["other"]


def test_a_stopped_run_goes_on_to_the_same_measures(straight: Path, tmp_path: Path) -> None:
    asked = iter([False] * 25)
    root = tmp_path / "runs"
    with pytest.raises(Interrupted):
        measuring(root).run(Quiet(), lambda: next(asked, True))
    assert Measured(root).missing({"small": PROTOCOL}) == ["small"]
    measuring(root).run(Quiet())
    assert read(root) == read(straight)


def test_measures_of_another_declaration_are_refused(straight: Path, tmp_path: Path) -> None:
    other = replace(PROTOCOL, rows=30)
    with pytest.raises(SuperposeError, match="measured with rows=20, not 30: move it and its runs"):
        Measured(straight).of("small", other)
    shutil.copytree(straight, tmp_path / "runs")
    root = tmp_path / "runs"
    centred = replace(PROTOCOL, options=PROTOCOL.options | {"centre": "rows"})
    with pytest.raises(SuperposeError, match=r"was learned with options=\{.*: move it away"):
        measuring(root, centred).run(Quiet())
    (root / "recognise" / "small" / "protocol.json").unlink()  # as of a run that was adopted
    with pytest.raises(SuperposeError, match=r"was started with lr=0\.001"):
        measuring(root, replace(PROTOCOL, rate={"lr": 1e-4})).run(Quiet())


def test_a_trained_run_is_measured_again_without_training(straight: Path, tmp_path: Path) -> None:
    shutil.copytree(straight, tmp_path / "runs")
    measuring(tmp_path / "runs", replace(PROTOCOL, rows=30)).run(Quiet(), lambda: True)
    assert read(tmp_path / "runs")["told_all"] == read(straight)["told_all"]
    assert read(tmp_path / "runs")["protocol"]["rows"] == 30


def test_finished_runs_are_adopted_with_their_models(straight: Path, tmp_path: Path) -> None:
    source, root = tmp_path / "mine", tmp_path / "runs"
    shutil.copytree(straight / "recognise" / "small", source / "deep" / "small")
    shutil.copytree(straight / "recognise" / "small", source / "unknown")
    shutil.copytree(straight / "recognise" / "small", source / "half" / "unended")
    (source / "half" / "unended" / "result.json").unlink()
    protocols = {"small": PROTOCOL, "unended": PROTOCOL}
    assert list(measured.adopt(source, root, protocols)) == [root / "recognise" / "small"]
    assert list(measured.adopt(source, root, protocols)) == []
    measuring(root).run(Quiet(), lambda: True)  # nothing is trained
    assert read(root) == read(straight)


def test_names_that_share_a_protocol_share_its_measures(tmp_path: Path) -> None:
    names = ["recognise-permuted-10", "recognise-evidence"]
    done = produce.train_missing(names, "smoke", tmp_path, display=lambda labels: Quiet())
    assert done == 1
    assert produce.train_missing(names, "smoke", tmp_path, display=lambda labels: Quiet()) == 0
    table, evidence = (produce.make(name, "smoke", tmp_path) for name in names)
    by_inputs = next(row for row in evidence["rows"] if row["evidence"] == "inputs")
    assert table["rows"][0]["inputs"] == by_inputs["accuracy"]


def test_words_choose_protocols_too(tmp_path: Path) -> None:
    names = ["fig-size", "recognise-doubt"]
    with pytest.raises(SuperposeError, match=r"u9: no run has this in its name; .*recognise/doubt"):
        produce.train_missing(names, "smoke", tmp_path, only=["u9"], display=lambda labels: Quiet())
