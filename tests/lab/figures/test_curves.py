"""Pictures of runs: lines and shades are the numbers."""

from pathlib import Path

import pytest
from lab.figures.fakes import LEARNED, fake, fake_all

from superpose.lab.experiments.settings import Settings
from superpose.lab.figures import (
    curves,
    produce,
    style,
)
from superpose.lab.figures.items import ITEMS


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
