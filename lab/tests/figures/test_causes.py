"""Tables that look for the cause where a claim differs."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import fake

from superpose_lab.figures import curves, style
from superpose_lab.figures.catalogue import FIGURES
from superpose_lab.figures.table import Table
from superpose_lab.results import Results


def table(name: str, folder: Path) -> Table:
    return FIGURES[name].table(name, "paper", Results(folder))


@pytest.mark.parametrize(("si", "outcome"), [(0.965, "agrees"), (0.95, "differs")])
def test_a_penalty_is_compared_with_the_number_that_the_paper_quotes(
    si: float, outcome: str, tmp_path: Path
) -> None:
    plain, penalised = (each.settings for each in FIGURES["zenke"].wanted("paper"))
    fake(tmp_path, plain, start=0.98, end=0.4)
    (claim,) = table("zenke", tmp_path).claims
    assert (claim.outcome, claim.theirs) == ("not run yet", "97.2")
    fake(tmp_path, penalised, start=si, end=si)
    (claim,) = table("zenke", tmp_path).claims
    assert (claim.text, claim.outcome) == ("si, c = 0.1: mean of all tasks", outcome)
    assert claim.ours == f"{100 * si:.2f}"


@pytest.mark.parametrize("name", ["rates-permuting", "rates-rotating"])
def test_accuracy_is_drawn_over_the_learning_rate(name: str, tmp_path: Path) -> None:
    ends = {"complex": [0.5, 0.6, 0.7, 0.6, 0.5], "rotation": [0.95, 0.9, 0.8, 0.7]}
    for method, at_rates in ends.items():
        wanted = [w for w in FIGURES[name].wanted("paper") if w.settings.method == method]
        for each, end in zip(wanted, at_rates, strict=False):
            for seed, moved in enumerate((0.01, -0.01)):
                settings = replace(each.settings, seed=seed)
                fake(tmp_path, settings, start=end + moved, end=end + moved)
    with style.style():
        figure = curves.by_rate(table(name, tmp_path))
    (axes,) = figure.axes
    rates = [2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4]
    assert list(axes.get_xticks()) == rates
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert drawn == [
        (rates[: len(at_rates)], pytest.approx([100 * end for end in at_rates]))
        for at_rates in ends.values()
    ]
    small_print = figure.get_supxlabel().replace("\n", " ")
    assert "Mean of 2 seeds: complex, 2.5e-05" in small_print
    assert "Not run yet: rotation, 0.0004." in small_print


def test_forgetting_is_shown(tmp_path: Path) -> None:
    (each,) = (
        w.settings for w in FIGURES["icifar-scratch"].wanted("paper") if w.label == "projection"
    )
    fake(tmp_path, each, start=0.6, end=0.6)
    found = table("icifar-scratch", tmp_path)
    assert found.columns[-1].key == "forgetting"
    assert "| projection | 0.001, constant | 16 | 5 | 1 | 60.00 | 60.00 | 60.00 | 0.00 |" in (
        found.markdown()
    )
