"""`superpose-lab reproduce` and `collect`: one smoke run a figure; errors are one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import LEARNED, RECOGNISED, fake

from superpose import SuperposeError
from superpose_lab.cli import main
from superpose_lab.figures.catalogue import FIGURES


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All figures at the smallest scale, by the command."""
    folder = tmp_path_factory.mktemp("smoke")
    words = ["--scale", "smoke", "--out", str(folder / "results"), "--runs", str(folder / "runs")]
    main(["reproduce", "all", *words, "--page", str(folder / "page.md"), "--quiet"])
    return folder


def facts(smoke: Path, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    words = ["--scale", "smoke", "--out", str(smoke / "results"), "--runs", str(smoke / "runs")]
    main(["reproduce", name, *words, "--json"])
    (fact,) = json.loads(capsys.readouterr().out)
    return dict(fact)


def test_every_figure_is_made_and_none_twice(
    smoke: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = smoke / "results" / "smoke"
    drawn = {path.stem for path in (folder / "figures").iterdir()}
    assert drawn == set(FIGURES)
    before = {path: path.stat().st_mtime_ns for path in (smoke / "runs").rglob("*")}
    for name in ("fig-icifar", "recognise-stream"):
        fact = facts(smoke, name, capsys)
        assert (fact["missing"], Path(fact["picture"]).name) == ([], f"{name}.svg")
    assert {path: path.stat().st_mtime_ns for path in (smoke / "runs").rglob("*")} == before


def test_the_page_has_every_figure_and_its_numbers(smoke: Path) -> None:
    text = (smoke / "page.md").read_text()
    for name in FIGURES:
        assert f"\n### {name}\n" in text
        assert f"](results/smoke/figures/{name}.svg)" in text
    assert "not run yet" not in text.partition("## Make it again")[2]
    lines = (smoke / "results" / "smoke" / "permuting-mnist.jsonl").read_text().splitlines()
    runs = {line["name"]: line["result"] for line in map(json.loads, lines)}
    binary = next(result for name, result in runs.items() if name.startswith("binary-u32-t3"))
    assert f"{100 * binary['mean_all']:.2f}" in text


def test_tasks_are_recognised(smoke: Path) -> None:
    lines = (smoke / "results" / "smoke" / "recognition.jsonl").read_text().splitlines()
    measures = {line["name"]: line["measures"] for line in map(json.loads, lines)}
    permuted = measures["permuted-10"]
    assert permuted["task_right"]["inputs"] > 95  # permuted pixels cannot be mistaken
    assert permuted["accuracy"]["inputs"] > 60
    assert permuted["auroc_other_tasks"] > 0.99
    assert 0.4 < permuted["auroc_other_data"] < 0.65  # the same digits at this scale
    assert permuted["numbers_for_recognition"] == 2 * 64 + 3
    assert sum(measures["rotated-36"]["degrees"].values()) == 4 * 50
    returning = measures["stream-returning"]
    assert returning["contexts"] == 5
    assert len(returning["spans"]) == 12
    assert returning["found"] > returning["told"] - 1
    assert len(LEARNED) + len(RECOGNISED) == len(FIGURES) - 5


def test_runs_are_brought_elsewhere(smoke: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = smoke / "elsewhere"
    main(["collect", str(smoke / "runs"), "--out", str(out), "--json"])
    names = json.loads(capsys.readouterr().out)
    for experiment in ("permuting-mnist", "rotating-fashion", "rotating-mnist", "icifar"):
        made = (smoke / "results" / "smoke" / f"{experiment}.jsonl").read_text()
        assert (out / f"{experiment}.jsonl").read_text() == made
    assert any(name.startswith("recognition-runs/") for name in names)
    main(["collect", str(smoke / "runs"), "--out", str(out)])
    assert capsys.readouterr().out == f"0 new lines in {out}\n"


def test_a_damaged_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake(tmp_path, FIGURES["fig-methods"].wanted("paper")[0].settings)
    path = tmp_path / "permuting-mnist.jsonl"
    path.write_text(path.read_text()[:50])
    words = ["--scale", "paper", "--draw-only", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "fig-methods", *words])
    assert ended.value.code == 1
    assert f"line 1 of {path} is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fig-nothing"], 2, "fig-rotating-context"),
        (["table1", "--jobs", "0"], 1, "jobs=0: must be at least 1"),
        (["fig-size", "--seeds", "0"], 1, "seeds=0: must be at least 1"),
        (["fig-size", "--only", "u9", "--only", "u7"], 1, "u7: no run has this in its name; there"),
    ],
)
def test_wrong_calls(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *arguments, "--scale", "smoke", "--out", str(tmp_path)])
    assert ended.value.code == code
    assert message in capsys.readouterr().err


def test_missing_data_is_the_data_sets_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str, data_dir: Path | None) -> None:
        raise SuperposeError(f"{name} cannot be loaded")

    monkeypatch.setattr("superpose_lab.data.load", load)
    words = ["--out", str(tmp_path), "--runs", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "fig-rotating-mnist", "--only", "binary", *words])
    assert ended.value.code == 1
    assert "mnist cannot be loaded" in capsys.readouterr().err
