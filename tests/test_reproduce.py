"""Figures and tables of the paper: runs are found, made, resumed, summarised, drawn, reported."""

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, get_args

import pytest

from superpose import contexts
from superpose.cli import main
from superpose.errors import SuperposeError
from superpose.lab.data.rotating import rotate
from superpose.lab.experiments.jobs import Job, run
from superpose.lab.experiments.settings import EXPERIMENTS, Settings
from superpose.lab.figures import (
    FigureName,
    curves,
    document,
    geometry,
    produce,
    runs,
    samples,
    style,
)
from superpose.lab.figures.findings import Measure, above, measure, tried, unchanged, within
from superpose.lab.figures.items import ITEMS, Computed
from superpose.lab.figures.runs import KEPT, Finished, Wanted, folder, place
from superpose.learning import Interrupted, Quiet
from superpose.learning.run_directory import locked

HERE = Path(__file__).parents[1]
LEARNED = [name for name, item in ITEMS.items() if not isinstance(item, Computed)]


def fake(root: Path, settings: Settings, start: float = 0.95, end: float = 0.8) -> dict[str, Any]:
    """A finished run whose first task falls from `start` to `end`."""
    full = EXPERIMENTS[settings.experiment].complete(settings)
    total = full.tasks * full.steps
    steps = range(full.evaluate_every, total + 1, full.evaluate_every)
    first = [[step, start + (end - start) * step / total] for step in steps]
    final = [end + (start - end) * k / full.tasks for k in range(full.tasks)]
    result = {
        "method": settings.method,
        "steps": total,
        "first": first,
        "first_task": end,
        "mean_last_ten": fmean(final[-10:]),
        "mean_all": fmean(final),
        "mean_when_learned": start,
        "final": final,
    }
    path = place(root, settings)
    path.mkdir(parents=True)
    about = {name: value for name, value in asdict(full).items() if name != "data_dir"}
    (path / "config.json").write_text(json.dumps({"about": about}))
    (path / "metrics.jsonl").write_text("")
    (path / "result.json").write_text(json.dumps(result))
    return result


def fake_all(name: str, out: Path, seeds: int = 1) -> None:
    """Finished runs for all that a name needs at the paper's scale, each method at its height."""
    for number, wanted in enumerate(ITEMS[name].wanted("paper")):
        for seed in range(seeds):
            end = 0.9 - 0.1 * number / 4 - 0.01 * seed
            fake(out / "runs", replace(wanted.settings, seed=seed), end=end)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few names at the smallest scale, by the command."""
    out = tmp_path_factory.mktemp("smoke")
    names = ["table1", "fig-methods", "fig-rotating-context", "fig-icifar", "fig-geometry"]
    main(["reproduce", *names, "--scale", "smoke", "--out", str(out), "--quiet"])
    return out


def test_every_name_of_the_issue_is_there() -> None:
    assert set(ITEMS) == set(get_args(FigureName))
    assert len(ITEMS) == 17


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


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        (Settings(experiment="permuting-mnist"), "permuting-mnist/binary-u256"),
        (
            Settings(experiment="permuting-mnist", tasks=50, steps=1000, lr=1e-4),
            "permuting-mnist/binary-u256",
        ),
        (
            Settings(experiment="permuting-mnist", method="binary+ewc", hidden=3, strength=2.0),
            "permuting-mnist/binary+ewc-u256-h3-strength2.0",
        ),
        (Settings(experiment="icifar", width=16, steps=1000), "icifar/binary-w16-s1000"),
        (
            Settings(experiment="rotating-fashion", method="fast", learnable=True, optimiser="sgd"),
            "rotating-fashion/fast-u256-sgd-learnable",
        ),
    ],
)
def test_a_folder_says_what_is_not_as_in_the_paper(settings: Settings, label: str) -> None:
    assert folder(settings) == label


def test_runs_of_different_settings_have_different_folders() -> None:
    base = Settings(experiment="permuting-mnist")
    changed: list[dict[str, Any]] = [
        {"method": "si"},
        {"dataset": "digits"},
        {"units": 8},
        {"hidden": 1},
        {"tasks": 2},
        {"steps": 2},
        {"batch_size": 2},
        {"optimiser": "adam"},
        {"lr": 0.5},
        {"schedule": "cosine"},
        {"reset": True},
        {"strength": 1.0},
        {"learnable": True},
        {"gain": 2.0},
        {"label_smoothing": 0.1},
        {"evaluate_every": 7},
    ]
    folders = {folder(replace(base, **change)) for change in changed}
    assert len(folders | {folder(base)}) == len(changed) + 1


def test_figures_share_their_runs() -> None:
    folders = {name: {w.folder for w in ITEMS[name].wanted("paper")} for name in LEARNED}
    assert "permuting-mnist/binary-u256" in folders["fig-size"] & folders["fig-methods"]
    assert folders["fig-rotating-close"] < folders["fig-rotating-fashion"]
    assert folders["fig-permuting-2000"] < folders["table-average"]


def test_small_scales_need_no_data_that_must_be_fetched() -> None:
    for name in LEARNED:
        assert {w.settings.dataset for w in ITEMS[name].wanted("smoke")} == {"digits"}


def test_mean_and_deviation_are_over_seeds(tmp_path: Path) -> None:
    settings = ITEMS["fig-methods"].wanted("paper")[1].settings
    ends = [0.80, 0.83, 0.87]
    for seed, end in enumerate(ends):
        fake(tmp_path / "runs", replace(settings, seed=seed), end=end)
    found = produce.make("fig-methods", "paper", tmp_path)
    row = next(row for row in found["rows"] if row["method"] == "binary")
    assert row["first_task"]["mean"] == pytest.approx(fmean(ends))
    assert row["first_task"]["deviation"] == pytest.approx(stdev(ends), abs=1e-6)
    curve = found["curves"]["permuting-mnist/binary-u256"]
    assert curve["seeds"] == [0, 1, 2]
    assert curve["deviation"][-1] == pytest.approx(stdev(ends), abs=1e-6)
    assert curve["steps"][-1] == 50_000
    missing = found["missing"]
    assert len(missing) == 21
    assert "permuting-mnist/standard-u256/seed-2" in missing


def test_lines_and_shades_are_the_numbers(tmp_path: Path) -> None:
    fake_all("fig-methods", tmp_path, seeds=2)
    found = produce.make("fig-methods", "paper", tmp_path)
    with style.style():
        figure = curves.by_method(found)
    (axes,) = figure.axes
    drawn = [list(line.get_ydata()) for line in axes.lines if len(line.get_ydata()) > 2]
    expected = [[100 * v for v in curve["mean"]] for curve in found["curves"].values()]
    assert drawn == expected
    assert len(axes.collections) == len(expected)
    written = [text.get_text() for text in axes.texts]
    assert "ten tasks" in written
    assert f"binary  {expected[1][-1]:.1f}" in written
    assert "Mean of 2 seeds" in figure.get_supxlabel()
    assert "50 tasks of 1,000 steps" in figure.get_supxlabel().replace("\n", " ")


def test_only_sizes_that_were_run_have_a_panel(tmp_path: Path) -> None:
    for units in (128, 512):
        fake(tmp_path / "runs", Settings(experiment="permuting-mnist", units=units))
    found = produce.make("fig-size", "paper", tmp_path)
    with style.style():
        figure = curves.by_size(found)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["128 units", "512 units"]
    assert "Not run yet: standard 128, binary 256" in figure.get_supxlabel().replace("\n", " ")


@pytest.mark.parametrize("name", LEARNED)
def test_every_figure_draws_full_data(name: str, tmp_path: Path) -> None:
    fake_all(name, tmp_path)
    found = produce.make(name, "paper", tmp_path)
    assert len(found["curves"]) == len(ITEMS[name].wanted("paper"))
    assert all(check["verdict"] != "not run yet" for check in found["checks"])
    for end in ("png", "svg", "json"):
        assert (tmp_path / "paper" / f"{name}.{end}").stat().st_size > 1000


def test_changes_are_judged_by_the_mean_of_all_tasks(tmp_path: Path) -> None:
    paper, deeper, learned, *_ = ITEMS["recipe"].wanted("paper")
    for wanted, end in ((paper, 0.80), (deeper, 0.85), (learned, 0.81)):
        fake(tmp_path / "runs", wanted.settings, end=end)
    found = produce.make("recipe", "paper", tmp_path)
    assert [row["label"] for row in found["rows"][:2]] == [paper.label, deeper.label]
    assert found["rows"][1]["when_learned"]["mean"] == 0.95
    verdicts = [check["verdict"] for check in found["checks"]]
    assert verdicts[:3] == ["better", "undecided", "not run yet"]
    rates = {row["label"]: row["rate"] for row in found["rows"]}
    assert rates[paper.label] == "0.0001, constant"
    assert rates["ours with binary"] == "0.0006, cosine"


@pytest.mark.parametrize(("end", "verdict"), [(0.983, "holds"), (0.95, "fails")])
def test_ours_is_held_to_its_goal(end: float, verdict: str, tmp_path: Path) -> None:
    wanted = {each.folder: each for each in ITEMS["ours"].wanted("paper")}
    ours = next(folder for folder in wanted if "projection-u2048" in folder)
    fake(tmp_path / "runs", wanted[ours].settings, start=0.985, end=end)
    found = produce.make("ours", "paper", tmp_path)
    checks = {check["claim"]: check["verdict"] for check in found["checks"]}
    assert checks["2048 units, 50 tasks: ours, a mean of all of at least 97.6"] == verdict
    assert checks["2048 units, 50 tasks: ours"] == "not run yet"
    assert checks["2000 units, 10 tasks: ours, a mean of all of at least 98.4"] == "not run yet"


def test_icifar_judges_ours_beside_binary_where_it_is_wanted(tmp_path: Path) -> None:
    narrow = [each for each in ITEMS["fig-icifar"].wanted("paper") if each.settings.width == 16]
    for each in narrow:
        ours = each.settings.method == "binary+projection"
        fake(tmp_path / "runs", each.settings, start=0.9, end=0.8 if ours else 0.5)
    found = produce.make("fig-icifar", "paper", tmp_path)
    told = [check for check in found["checks"] if "projection" in check["claim"]]
    assert [(check["claim"], check["verdict"]) for check in told] == [
        ("width 16: binary+projection is better than binary", "holds")
    ]


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
    assert "not run yet at scale paper" in document.markdown(tmp_path, "paper", "p")


def test_drawing_only_takes_computed_numbers_from_their_file(tmp_path: Path) -> None:
    produce.make("table1", "smoke", tmp_path)
    path = tmp_path / "smoke" / "table1.json"
    path.write_text(path.read_text().replace("without bias", "free of bias"))
    assert "free of bias" in produce.make("table1", "smoke", tmp_path, compute=False)["about"]
    assert "without bias" in produce.make("table1", "smoke", tmp_path)["about"]


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
    with pytest.raises(SuperposeError, match="lacks what a run measures"):
        produce.make("fig-methods", "paper", tmp_path)


def test_another_run_in_the_place_is_refused(tmp_path: Path) -> None:
    settings = ITEMS["fig-methods"].wanted("paper")[0].settings
    fake(tmp_path, settings)
    config = place(tmp_path, settings) / "config.json"
    config.write_text(config.read_text().replace('"units": 256', '"units": 64'))
    with pytest.raises(SuperposeError, match="units=64, not 256"):
        Finished(tmp_path).of(settings)


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
        (["table1", "--jobs", "0"], "both are at least 1"),
        (["fig-size", "--only", "u9", "--only", "u7"], "u7 is in none of permuting-mnist/binary"),
        (["table1", "--adopt", "nowhere"], "nowhere is not a directory"),
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


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SuperposeError, match=re.escape("superpose[lab]")):
        produce.make("table1", "smoke", tmp_path)


def test_runs_from_elsewhere_are_adopted(tmp_path: Path) -> None:
    settings = Settings(experiment="icifar", method="multihead", width=16, steps=1000, seed=4)
    fake(tmp_path / "elsewhere", settings)
    there = place(tmp_path / "elsewhere", settings)
    config = json.loads((there / "config.json").read_text())
    config["command"] = "superpose run icifar --out /somewhere/else"
    (there / "config.json").write_text(json.dumps(config))
    (there / "checkpoint.pt").write_bytes(b"large")
    (there / "timings.json").write_text("{}")
    (there.parent / "result.json").write_text("{}")  # a summary over seeds is no run
    root = tmp_path / "runs"
    assert runs.adopt(tmp_path / "elsewhere", root) == [place(root, settings)]
    assert sorted(p.name for p in place(root, settings).iterdir()) == sorted(KEPT)
    adopted = json.loads((place(root, settings) / "config.json").read_text())
    told = "superpose run icifar --method multihead --width 16 --steps 1000 --seed 4"
    assert adopted["command"] == told
    assert runs.adopt(tmp_path / "elsewhere", root) == []
    other = tmp_path / "in use"
    place(other, settings).mkdir(parents=True)
    with locked(place(other, settings)), pytest.raises(SuperposeError, match="in use by another"):
        runs.adopt(tmp_path / "elsewhere", other)
    assert [path.name for path in place(other, settings).iterdir()] == [".lock"]


def test_seeds_come_first_to_last_over_all_methods(tmp_path: Path) -> None:
    wanted = [Wanted(Settings(experiment="icifar", width=w), seeds=2) for w in (4, 8)]
    order = [(s.seed, s.width) for s in Finished(tmp_path).missing(wanted)]
    assert order == [(0, 4), (0, 8), (1, 4), (1, 8)]


def test_verdicts() -> None:
    def of(*values: float) -> Measure | None:
        return measure(dict(enumerate(values)))

    assert above("", of(0.9, 0.92), of(0.8, 0.82))["verdict"] == "reproduced"
    assert above("", of(0.8, 0.82), of(0.9, 0.92))["verdict"] == "differs"
    assert above("", of(0.8, 1.0), of(0.7, 0.9))["verdict"] == "undecided"
    assert above("", of(0.9), of(0.81))["verdict"] == "undecided"
    assert above("", of(0.9), None)["verdict"] == "not run yet"
    extra = above("", of(0.8, 0.8), of(0.9, 0.9), extra=True)
    assert (extra["paper"], extra["verdict"]) == ("not in the paper", "fails")
    assert within("", 0.976, of(0.967))["verdict"] == "reproduced"
    assert within("", 0.976, of(0.965))["verdict"] == "differs"
    assert unchanged("", {0: 0.011, 1: 0.008})["verdict"] == "reproduced"
    assert unchanged("", {0: 0.02})["verdict"] == "differs"
    assert tried("", of(0.92), of(0.9))["verdict"] == "better"
    assert tried("", of(0.88), of(0.9))["verdict"] == "worse"
    assert tried("", of(0.905), of(0.9))["verdict"] == "undecided"


def test_methods_are_compared_over_the_seeds_that_both_have() -> None:
    one, several = measure({0: 0.86}), measure({0: 0.83, 1: 0.7, 2: 0.72})
    compared = above("", one, several)
    assert compared["ours"] == "86.00 against 83.00 (n = 1)"
    assert compared["verdict"] == "undecided"
    assert above("", measure({5: 0.86}), several)["verdict"] == "not run yet"


def test_the_report_needs_nothing_beside_it(smoke: Path) -> None:
    main(["report", str(smoke), "--scale", "smoke"])
    page = (smoke / "report.html").read_text()
    for name in ("table1", "fig-methods", "fig-icifar", "fig-geometry"):
        assert f'<h2 id="{name}">' in page
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources
    assert all(each.startswith(("data:image/svg+xml;base64,", "#")) for each in sources)
    assert "http" not in re.sub(r'src="[^"]*"', "", page)
    assert "nothing else" in page  # that smoke says nothing of the paper


def test_a_report_of_nothing_says_how_to_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path)])
    assert ended.value.code == 1
    assert "superpose reproduce all --scale paper" in capsys.readouterr().err


def test_what_was_found_out_is_told_beside_the_numbers(tmp_path: Path) -> None:
    produce.make("table1", "smoke", tmp_path)
    (tmp_path / "smoke" / "table1.md").write_text(
        "A < B, as expected.\n\nMore in `code` and [there](#ours).\n"
    )
    text = document.markdown(tmp_path, "smoke", "pictures")
    assert "\n\nA < B, as expected.\n\nMore in `code` and [there](#ours).\n\n" in text
    page = document.page(tmp_path, "smoke")
    assert "<p>A &lt; B, as expected.</p>" in page
    assert '<p>More in <code>code</code> and <a href="#ours">there</a>.</p>' in page


def test_the_committed_document_is_made_from_the_committed_numbers() -> None:
    made = document.markdown(HERE / "results", "paper", "../results/paper")
    assert (HERE / "docs" / "reproduction.md").read_text() == made, (
        "run: superpose report results --markdown docs/reproduction.md"
    )


@pytest.mark.parametrize("name", LEARNED)
def test_the_committed_numbers_are_those_of_the_committed_runs(name: str) -> None:
    committed = json.loads((HERE / "results" / "paper" / f"{name}.json").read_text())
    data = Finished(HERE / "results" / "runs")
    table = json.loads(json.dumps(ITEMS[name].table("paper", data, None)))
    assert {key: committed[key] for key in table} == table, (
        f"run: superpose reproduce {name} --scale paper --draw-only"
    )


@pytest.mark.parametrize("name", get_args(FigureName))
def test_committed_results_have_pictures_if_there_is_anything_to_show(name: str) -> None:
    committed = json.loads((HERE / "results" / "paper" / f"{name}.json").read_text())
    shows = name not in LEARNED or bool(committed["curves"])
    for end in ("png", "svg"):
        assert (HERE / "results" / "paper" / f"{name}.{end}").exists() == shows


def test_table1_is_counted_and_met() -> None:
    committed = json.loads((HERE / "results" / "paper" / "table1.json").read_text())
    assert ITEMS["table1"].table("paper", Finished(HERE), None)["rows"] == committed["rows"]
    assert {check["verdict"] for check in committed["checks"]} == {"reproduced"}


def test_the_geometry_is_that_of_each_family_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def right() -> list[str]:
        found = geometry.table()
        pairs = zip(found["rows"], found["checks"], strict=True)
        return [
            row["family"] for row, check in pairs if check["verdict"] in ("reproduced", "holds")
        ]

    assert right() == list(geometry.PANELS)
    known = contexts.family
    for wrong in ("identity", "permutation", "rotation", "hadamard"):
        for name in geometry.PANELS:
            swapped = {name: wrong}
            monkeypatch.setattr(
                geometry.contexts, "family", lambda n, swapped=swapped: known(swapped.get(n, n))
            )
            if name not in (wrong, "onepower"):  # whose powers are drawn
                assert right() == [each for each in geometry.PANELS if each != name]


@pytest.mark.parametrize("wrong", [lambda x, degrees: x, lambda x, degrees: rotate(x, -degrees)])
def test_images_that_do_not_turn_as_the_paper_says_are_told(
    wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert samples.rotating("smoke", None)["checks"][0]["verdict"] == "reproduced"
    monkeypatch.setattr("superpose.lab.data.rotating.rotate", wrong)
    assert samples.rotating("smoke", None)["checks"][0]["verdict"] == "differs"


def test_propositions_are_met_and_a_wrong_prediction_is_not() -> None:
    from superpose.lab.figures import propositions

    found = propositions.table("smoke")
    assert {check["verdict"] for check in found["checks"]} == {"reproduced", "holds"}
    rows = [{**row, "ratio": 2 * row["ratio"]} for row in found["rows"]]
    wrong = propositions._checks("binary", rows, found["gradients"])
    assert [check["verdict"] for check in wrong] == ["reproduced", "differs", "reproduced"]
    steps = [{**row, "relative_error": 1e-3} for row in found["gradients"]]
    wrong = propositions._checks("binary", found["rows"], steps)
    assert [check["verdict"] for check in wrong] == ["reproduced", "reproduced", "differs"]


@pytest.mark.parametrize(("lower", "verdict"), [(0.005, "reproduced"), (0.05, "differs")])
def test_forms_that_differ_in_large_networks_are_told(
    lower: float, verdict: str, tmp_path: Path
) -> None:
    for wanted in ITEMS["fig-permuting-2000"].wanted("paper"):
        end = 0.9 - lower * (wanted.settings.method == "onepower")
        fake(tmp_path / "runs", wanted.settings, end=end)
    checks = produce.make("fig-permuting-2000", "paper", tmp_path)["checks"]
    assert [check["verdict"] for check in checks if "hardly differ" in check["claim"]] == [verdict]


@pytest.mark.parametrize(("step", "verdict"), [(0.01, "reproduced"), (-0.01, "differs")])
def test_larger_networks_that_keep_less_are_told(step: float, verdict: str, tmp_path: Path) -> None:
    for number, wanted in enumerate(ITEMS["fig-size"].wanted("paper")):
        fake(tmp_path / "runs", wanted.settings, end=0.7 + step * number)
    checks = produce.make("fig-size", "paper", tmp_path)["checks"]
    assert [check["verdict"] for check in checks if "larger" in check["claim"]] == [verdict]
