"""Pictures of runs: lines and shades are the numbers."""

from pathlib import Path

import pytest
from fakes import LEARNED, fake, fake_all
from matplotlib.figure import Figure

from superpose_lab.experiments.settings import Settings
from superpose_lab.figures import curves, style
from superpose_lab.figures.catalogue import FIGURES
from superpose_lab.figures.fine_tunes import Point, _panel
from superpose_lab.figures.produce import Place, make
from superpose_lab.results import Results


def test_lines_and_shades_are_the_numbers(tmp_path: Path) -> None:
    fake_all("fig-methods", tmp_path, seeds=2)
    table = FIGURES["fig-methods"].table("fig-methods", "paper", Results(tmp_path))
    with style.style():
        figure = curves.by_method(table)
    (axes,) = figure.axes
    drawn = [list(line.get_ydata()) for line in axes.lines if len(line.get_ydata()) > 2]
    expected = [[100 * v for v in curve["mean"]] for curve in table.picture["curves"].values()]
    assert drawn == expected
    assert len(axes.collections) == len(expected)
    written = [text.get_text() for text in axes.texts]
    assert "ten tasks" in written
    assert f"binary  {expected[1][-1]:.1f}" in written
    assert "Mean of 2 seeds" in figure.get_supxlabel()
    assert "50 tasks of 1,000 steps" in figure.get_supxlabel().replace("\n", " ")


def test_only_sizes_that_were_run_have_a_panel(tmp_path: Path) -> None:
    for units in (128, 512):
        fake(tmp_path, Settings(experiment="permuting-mnist", units=units))
    table = FIGURES["fig-size"].table("fig-size", "paper", Results(tmp_path))
    with style.style():
        figure = curves.by_size(table)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["128 units", "512 units"]
    assert "Not run yet: standard 128, binary 256" in figure.get_supxlabel().replace("\n", " ")


@pytest.mark.parametrize("name", LEARNED)
def test_every_figure_draws_full_data(name: str, tmp_path: Path) -> None:
    fake_all(name, tmp_path)
    place = Place("paper", tmp_path, tmp_path / "runs")
    table = make(name, place)
    assert len(table.picture["curves"]) == len(FIGURES[name].wanted("paper"))
    assert all(claim.outcome != "not run yet" for claim in table.claims)
    drawn = place.picture(name).read_bytes()
    assert len(drawn) > 1000
    make(name, place)
    assert place.picture(name).read_bytes() == drawn


def point(method: str, label: str, total: int, end: float) -> Point:
    return Point(
        problem="mlp", method=method, label=label, words=label, tasks=2, network=100, total=total,
        learned=[end], end=[end],
    )  # fmt: skip


def test_methods_are_points_and_lora_of_growing_rank_is_a_line() -> None:
    axes = Figure().subplots()
    _panel(
        axes,
        [
            point("lora", "LoRA, rank 1", 110, 80.0),
            point("lora", "LoRA, rank 2", 120, 85.0),
            point("superposed", "base + superposed", 200, 90.0),
        ],
    )
    lines = [(line.get_xdata(), line.get_ydata()) for line in axes.lines]
    shown = sorted(([float(a) for a in x], [float(b) for b in y]) for x, y in lines if len(x))
    assert shown == [([1.1, 1.2], [80.0, 85.0]), ([2.0], [90.0])]
    labels = {text.get_text() for text in axes.texts}
    assert labels == {"LoRA, rank 1", "2", "base + superposed"}
