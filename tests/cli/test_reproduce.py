"""`superpose reproduce`: runs are found or made, and drawn; errors are one sentence."""

import json
import re
from pathlib import Path

import pytest
from lab.figures.fakes import RECOGNISED, fake

from superpose.cli import main
from superpose.errors import SuperposeError
from superpose.lab.figures import (
    produce,
)
from superpose.lab.figures.items import ITEMS
from superpose.lab.figures.runs import KEPT, place


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few names at the smallest scale, by the command."""
    out = tmp_path_factory.mktemp("smoke")
    names = ["table1", "fig-methods", "fig-rotating-context", "fig-icifar", "fig-geometry"]
    main(["reproduce", *names, "--scale", "smoke", "--out", str(out), "--quiet"])
    return out


def test_finished_runs_hold_four_files_and_no_paths(smoke: Path) -> None:
    found = sorted((smoke / "smoke" / "runs").rglob("result.json"))
    assert len(found) == 8 + 5 + 4
    for path in found:
        assert sorted(p.name for p in path.parent.iterdir()) == sorted(KEPT)
        config = json.loads((path.parent / "config.json").read_text())
        assert str(smoke) not in json.dumps(config)
        assert config["command"].startswith(f"superpose run {config['about']['experiment']}")


def test_the_numbers_of_a_figure_are_those_of_its_runs(smoke: Path) -> None:
    found = json.loads((smoke / "smoke" / "fig-methods.json").read_text())
    assert [row["method"] for row in found["rows"]][:2] == ["standard", "binary"]
    assert not found["missing"]
    for row in found["rows"]:
        path = smoke / "smoke" / "runs" / row["run"] / "seed-0" / "result.json"
        result = json.loads(path.read_text())
        assert row["first_task"] == {
            "mean": round(result["first_task"], 6),
            "deviation": None,
            "seeds": {"0": round(result["first_task"], 6)},
        }
        curve = found["curves"][row["run"]]
        assert [list(pair) for pair in zip(curve["steps"], curve["mean"], strict=True)] == [
            [step, round(value, 6)] for step, value in result["first"]
        ]


def test_finished_runs_are_not_run_again(smoke: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = list((smoke / "smoke" / "runs").rglob("*"))
    before = {path: path.stat().st_mtime_ns for path in results if path.is_file()}
    main(["reproduce", "fig-icifar", "--scale", "smoke", "--out", str(smoke), "--json"])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["name"], told["missing"], len(told["files"])) == ("fig-icifar", [], 3)


def test_tasks_are_recognised_by_the_command(tmp_path: Path) -> None:
    main(["reproduce", *RECOGNISED, "--scale", "smoke", "--out", str(tmp_path), "--quiet"])
    for name in RECOGNISED:
        found = json.loads((tmp_path / "smoke" / f"{name}.json").read_text())
        assert not found["missing"]
        assert all(row["seeds"] for row in found["rows"])
        for end in ("png", "svg"):
            assert (tmp_path / "smoke" / f"{name}.{end}").exists()
    measures = tmp_path / "smoke" / "recognise"
    permuted = json.loads((measures / "permuted-10.json").read_text())
    assert permuted["task_right"]["inputs"] > 95  # permuted pixels cannot be mistaken
    assert permuted["accuracy"]["inputs"] > 60
    assert permuted["auroc_other_tasks"] > 0.99
    assert 0.4 < permuted["auroc_other_data"] < 0.65  # which are the same digits at this scale
    assert permuted["numbers_for_recognition"] == 2 * 64 + 3
    turned = json.loads((measures / "rotated-36.json").read_text())
    assert sum(turned["degrees"].values()) == 4 * 50
    returning = json.loads((measures / "stream-returning.json").read_text())
    assert returning["contexts"] == 5
    assert len(returning["spans"]) == 12
    assert returning["found"] > returning["told"] - 1
    main(["report", str(tmp_path), "--scale", "smoke"])
    page = (tmp_path / "report.html").read_text()
    assert all(f'<h2 id="{name}">' in page for name in RECOGNISED)


def test_a_damaged_result_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ITEMS["fig-methods"].wanted("paper")[0].settings
    fake(tmp_path / "runs", settings)
    path = place(tmp_path / "runs", settings) / "result.json"
    path.write_text(path.read_text()[:50])
    with pytest.raises(SystemExit) as ended:
        main(
            ["reproduce", "fig-methods", "--scale", "paper", "--draw-only", "--out", str(tmp_path)]
        )
    assert ended.value.code == 1
    assert f"{path} is damaged" in capsys.readouterr().err
    path.write_text('{"method": "standard"}')
    with pytest.raises(SuperposeError, match="some numbers are missing: delete its directory"):
        produce.make("fig-methods", "paper", tmp_path)


def test_unknown_names_are_answered_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "fig-nothing"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "fig-nothing" in told
    assert "fig-rotating-context" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table1", "--jobs", "0"], "--jobs 0: both must be at least 1"),
        (
            ["fig-size", "--only", "u9", "--only", "u7"],
            "u7: no run has this in its name; there are permut",
        ),
        (["table1", "--adopt", "nowhere"], "--adopt nowhere: this is not a directory"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *arguments, "--scale", "smoke", "--out", str(tmp_path)])
    assert ended.value.code == 1
    assert message in capsys.readouterr().err


def test_missing_data_is_the_data_sets_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str, data_dir: Path | None) -> None:
        raise SuperposeError(f"{name} cannot be had")

    monkeypatch.setattr("superpose.lab.data.load", load)
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "fig-rotating-mnist", "--only", "binary", "--out", str(tmp_path)])
    assert ended.value.code == 1
    assert "mnist cannot be had" in capsys.readouterr().err


def test_the_report_needs_nothing_beside_it(smoke: Path) -> None:
    main(["report", str(smoke), "--scale", "smoke"])
    page = (smoke / "report.html").read_text()
    for name in ("table1", "fig-methods", "fig-icifar", "fig-geometry"):
        assert f'<h2 id="{name}">' in page
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources
    assert all(each.startswith(("data:image/svg+xml;base64,", "#")) for each in sources)
    assert "://" not in re.sub(r'src="[^"]*"', "", page)
    assert "their accuracies mean nothing" in page  # of smoke


def test_a_report_of_nothing_says_how_to_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path)])
    assert ended.value.code == 1
    assert "superpose reproduce all --scale paper" in capsys.readouterr().err
