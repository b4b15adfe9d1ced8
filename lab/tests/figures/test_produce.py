"""Runs that a figure lacks are made, resumed and collected."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from superpose import SuperposeError
from superpose.learning import Interrupted, Quiet
from superpose_lab.collect import collect
from superpose_lab.experiments.jobs import Job, run
from superpose_lab.experiments.recognition.after_learning import AfterLearning
from superpose_lab.experiments.recognition.protocols import SMOKE
from superpose_lab.figures import page, produce
from superpose_lab.figures.catalogue import FIGURES
from superpose_lab.figures.produce import Measuring, Place, train_missing
from superpose_lab.results import Results


def quiet(labels: object) -> Quiet:
    return Quiet()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("smoke", tmp_path / "results", tmp_path / "runs")


def test_a_stopped_run_resumes_to_the_same_numbers(place: Place) -> None:
    settings = FIGURES["fig-size"].wanted("smoke")[0].settings
    straight = run(Job(settings, None, "straight"), Quiet()).result
    directory = place.directory(settings)
    asked = iter([False] * 30)
    with pytest.raises(Interrupted):
        run(Job(settings, directory, "a", {"resume": True}), Quiet(), lambda: next(asked, True))
    assert not (directory / "result.json").exists()
    only = [directory.parent.name]
    assert train_missing(["fig-size"], place, only=only, display=quiet) == 1
    assert json.loads((directory / "result.json").read_text()) == json.loads(json.dumps(straight))
    assert sorted(path.name for path in directory.iterdir()) == [
        "config.json", "metrics.jsonl", "result.json", "timings.json",
    ]  # fmt: skip
    assert train_missing(["fig-size"], place, only=only, display=quiet) == 0


def test_a_line_keeps_configuration_measures_and_command(place: Place) -> None:
    settings = FIGURES["fig-size"].wanted("smoke")[0].settings
    only = ["binary-u16-"]
    train_missing(["fig-size"], place, only=only, display=quiet)
    (line,) = Results(place.folder).lines("permuting-mnist")
    directory = place.directory(settings)
    result = json.loads((directory / "result.json").read_text())
    config = json.loads((directory / "config.json").read_text())
    assert line["command"].startswith("superpose-lab run permuting-mnist --dataset digits")
    assert line["config"]["about"] == config["about"]
    assert line["config"]["stream"] == config["stream"]
    assert line["result"]["first"] == [[s, pytest.approx(v, abs=1e-6)] for s, v in result["first"]]
    assert [dict(row) for row in line["result"]["matrix"]] == [
        {k: pytest.approx(v, abs=1e-6) for k, v in enumerate(row) if v is not None}
        for row in result["matrix"]
    ]
    assert line["timings"]["seconds"] > 0
    assert str(place.runs) not in json.dumps(line)


def test_runs_are_collected_once_and_those_of_others_are_left(place: Place) -> None:
    train_missing(["fig-size"], place, only=["binary-u16-"], display=quiet)
    (path,) = place.runs.rglob("result.json")
    mine = place.runs / "mine"
    shutil.copytree(path.parent, mine)
    (mine / "config.json").write_text(json.dumps({"about": {}}))
    (place.runs / "notes.json").write_text("[]")
    results = Results(place.out / "elsewhere")
    assert collect([place.runs], results) == [f"permuting-mnist/{path.parent.parent.name}"]
    assert collect([place.runs], results) == []
    (path.parent / "result.json").write_text("{")
    with pytest.raises(SuperposeError, match=r"result\.json is damaged"):
        collect([place.runs], results)
    with pytest.raises(SuperposeError, match="nowhere is not a directory"):
        collect([Path("nowhere")], results)


def test_seeds_of_one_name_are_lines_each(place: Place) -> None:
    done = train_missing(["fig-size"], place, seeds=2, only=["binary-u16-"], display=quiet)
    assert done == 2
    results = Results(place.out / "elsewhere")
    assert len(collect([place.runs], results)) == 2
    settings = FIGURES["fig-size"].wanted("smoke")[0].settings
    first, second = (results.of(settings)[seed] for seed in (0, 1))
    assert first["first"] != second["first"]
    assert Results(place.out / "elsewhere").of(settings) == results.of(settings)


def test_measures_and_learning_rates_beside_runs_are_collected(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    (folder / "recognise").mkdir(parents=True)
    (folder / "minilm" / "tuning").mkdir(parents=True)
    options = {"recognise": {"layer": None, "rank": 8, "forget": 0.0, "most": None}}
    measures = {"command": "c", "protocol": {"options": options}, "told_all": 97.12345678}
    (folder / "recognise" / "mine.json").write_text(json.dumps(measures))
    rates = {"about": {"net": "minilm"}, "mean_all": {"0.1": 0.5}, "lr": 0.1}
    (folder / "minilm" / "tuning" / "lora-r4.json").write_text(json.dumps(rates))
    results = Results(tmp_path)
    assert collect([folder], results) == ["fine-tunes-rates/minilm/lora-r4", "recognition/mine"]
    line = results.one("recognition", "mine")
    assert line is not None
    assert line["protocol"]["options"] == {"recognise": {"rank": 8}}
    assert line["measures"]["told_all"] == pytest.approx(97.123457)


def test_the_error_of_a_run_comes_after_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Job.run

    def fails(job: Job, *arguments: object) -> object:
        if job.settings.method == "binary":
            raise SuperposeError("it broke")
        return known(job, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Job, "run", fails)
    with pytest.raises(SuperposeError, match="it broke"):
        train_missing(["fig-size"], place, only=["u16"], display=quiet)
    (line,) = Results(place.folder).lines("permuting-mnist")
    assert line["result"]["method"] == "standard"


def test_drawing_only_takes_computed_numbers_from_the_results(place: Place) -> None:
    produce.make("table1", place)
    path = place.folder / "computed.jsonl"
    path.write_text(path.read_text().replace("without bias", "free of bias"))
    assert "free of bias" in produce.make("table1", place, compute=False).heading
    assert "without bias" in produce.make("table1", place).heading


def test_what_was_not_run_is_said_and_not_drawn(place: Place) -> None:
    table = produce.make("fig-icifar", place)
    assert {claim.outcome for claim in table.claims} == {"not run yet"}
    assert not place.picture("fig-icifar").exists()
    text = page.page(place, place.out.parent / "docs")
    assert "Status: not run yet. Made by `superpose-lab reproduce fig-icifar" in text
    assert "fig-icifar.svg" not in text
    assert "their accuracies mean nothing" in text


def test_remarks_are_beside_the_numbers(place: Place) -> None:
    produce.make("table1", place)
    remark = place.folder / "remarks" / "table1.md"
    remark.parent.mkdir()
    remark.write_text("As expected: see [there](#ours).\n")
    text = page.page(place, place.out.parent / "docs")
    assert "table1.svg)\n\nAs expected: see [there](#ours).\n\n| method |" in text


SMALL = SMOKE["permuted-10"]
assert isinstance(SMALL, AfterLearning)
PROTOCOL = replace(SMALL, tasks=2, rows=20, evidence=("inputs",))


def test_a_protocol_is_measured_again_without_training_and_refused_if_it_differs(
    tmp_path: Path,
) -> None:
    asked = iter([False] * 25)
    measuring = Measuring("small", PROTOCOL, tmp_path, "command")
    with pytest.raises(Interrupted):
        measuring.run(Quiet(), lambda: next(asked, True))
    line = measuring.run(Quiet())
    straight = Measuring("small", PROTOCOL, tmp_path / "straight", "command").run(Quiet())
    assert line == straight
    assert line["protocol"]["rows"] == 20
    more = replace(measuring, protocol=replace(PROTOCOL, rows=30)).run(Quiet(), lambda: True)
    assert more["told_all"] == line["told_all"]
    centred = replace(PROTOCOL, options=PROTOCOL.options | {"centre": "rows"})
    with pytest.raises(SuperposeError, match=r"was learned with options=\{.*: move it away"):
        replace(measuring, protocol=centred).run(Quiet())


def test_words_that_match_no_run_are_answered_with_the_list(place: Place) -> None:
    names = ["fig-size", "recognise-doubt"]
    with pytest.raises(SuperposeError, match=r"u9: no run has this .*recognition/doubt"):
        train_missing(names, place, only=["u9"], display=quiet)
