"""The committed results: the page, the list of figures, and the pictures."""

from pathlib import Path
from typing import get_args

import pytest
from fakes import LEARNED, RECOGNISED

from superpose_lab.experiments.recognition.protocols import SCALES
from superpose_lab.figures import FigureName, counts, page
from superpose_lab.figures.catalogue import FIGURES
from superpose_lab.figures.produce import Place
from superpose_lab.results import Results

ROOT = Path(__file__).parents[3]
PLACE = Place("paper", ROOT / "results", ROOT / "runs")


def test_the_page_is_written_from_the_results() -> None:
    assert (ROOT / "docs" / "reproduction.md").read_text() == page.page(PLACE, ROOT / "docs"), (
        "run: superpose-lab reproduce all --scale paper --draw-only --page docs/reproduction.md"
    )


def test_the_classes_of_claims_are_counted() -> None:
    tables = [f.table(n, "paper", Results(PLACE.folder)) for n, f in FIGURES.items()]
    kinds = [claim.kind for table in tables for claim in table.claims]
    counted = {kind: kinds.count(kind) for kind in set(kinds)}
    assert counted == {"number": 14, "ordering": 36, "mathematics": 22}
    text = (ROOT / "docs" / "reproduction.md").read_text()
    assert "| [Orderings](#orderings) | 36 |" in text


@pytest.mark.parametrize("name", get_args(FigureName))
def test_every_figure_with_results_has_a_picture(name: str) -> None:
    picture = PLACE.picture(name)
    if page.status(FIGURES[name].table(name, "paper", Results(PLACE.folder))) == "not run yet":
        assert not picture.exists()
    else:
        assert picture.stat().st_size > 1000


def test_results_are_few_and_small() -> None:
    files = [path for path in PLACE.folder.rglob("*") if path.is_file()]
    files = [path for path in files if not {"smoke", "quick"} & set(path.parts)]
    assert len(files) <= 150
    assert sum(path.stat().st_size for path in files) <= 8 << 20


def test_table1_is_what_is_counted() -> None:
    committed = FIGURES["table1"].table("table1", "paper", Results(PLACE.folder))
    assert counts.table("paper").rows == committed.rows


def test_every_name_is_there() -> None:
    assert set(FIGURES) == set(get_args(FigureName))
    assert [name for name in FIGURES if name.startswith("recognise-")] == RECOGNISED


def test_figures_share_their_runs() -> None:
    names = {name: {w.name for w in FIGURES[name].wanted("paper")} for name in LEARNED}
    assert "binary-u256" in names["fig-size"] & names["fig-methods"]
    assert names["fig-rotating-close"] < names["fig-rotating-fashion"]
    assert names["fig-permuting-2000"] < names["table-average"]


def test_small_scales_need_no_data_that_must_be_fetched() -> None:
    for name in LEARNED:
        assert {w.settings.dataset for w in FIGURES[name].wanted("smoke")} == {"digits"}
    for name in RECOGNISED:
        for protocol in FIGURES[name].protocols("smoke").values():
            declared = protocol.declared()
            assert {declared["dataset"], declared.get("other", "digits")} == {"digits"}


@pytest.mark.parametrize("scale", SCALES)
def test_every_protocol_is_shown(scale: str) -> None:
    shown = {n for figure in FIGURES.values() for n in figure.protocols(scale)}  # type: ignore[arg-type]
    assert shown == set(SCALES[scale])
