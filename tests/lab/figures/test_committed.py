"""The committed results: document, numbers and pictures are those of the committed runs."""

import json
from pathlib import Path
from typing import get_args

import pytest
from lab.figures.fakes import LEARNED, RECOGNISED

from superpose.lab.figures import (
    FigureName,
    document,
)
from superpose.lab.figures.items import ITEMS
from superpose.lab.figures.runs import Finished

HERE = Path(__file__).parents[3]


def test_the_committed_document_is_made_from_the_committed_numbers() -> None:
    made = document.markdown(HERE / "results", "paper", "../results/paper")
    assert (HERE / "docs" / "reproduction.md").read_text() == made, (
        "run: superpose report results --markdown docs/reproduction.md"
    )


@pytest.mark.parametrize("name", LEARNED + RECOGNISED)
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
    shows = ITEMS[name].shows(committed)
    for end in ("png", "svg"):
        assert (HERE / "results" / "paper" / f"{name}.{end}").exists() == shows


def test_table1_is_counted_and_met() -> None:
    committed = json.loads((HERE / "results" / "paper" / "table1.json").read_text())
    assert ITEMS["table1"].table("paper", Finished(HERE), None)["rows"] == committed["rows"]
    assert {check["verdict"] for check in committed["checks"]} == {"reproduced"}
