"""The list of figures and tables, and the runs that each needs."""

from typing import get_args

from lab.figures.fakes import LEARNED, RECOGNISED

from superpose.lab.experiments.recognition.protocols import SCALES
from superpose.lab.figures import (
    FigureName,
)
from superpose.lab.figures.items import ITEMS
from superpose.lab.figures.produce import protocols_of


def test_every_name_of_the_issue_is_there() -> None:
    assert set(ITEMS) == set(get_args(FigureName))
    assert len(ITEMS) == 29
    assert [name for name in ITEMS if name.startswith("recognise-")] == RECOGNISED


def test_figures_share_their_runs() -> None:
    folders = {name: {w.folder for w in ITEMS[name].wanted("paper")} for name in LEARNED}
    assert "permuting-mnist/binary-u256" in folders["fig-size"] & folders["fig-methods"]
    assert folders["fig-rotating-close"] < folders["fig-rotating-fashion"]
    assert folders["fig-permuting-2000"] < folders["table-average"]


def test_small_scales_need_no_data_that_must_be_fetched() -> None:
    for name in LEARNED:
        assert {w.settings.dataset for w in ITEMS[name].wanted("smoke")} == {"digits"}
    for name in RECOGNISED:
        small = ITEMS[name].protocols("smoke").values()
        assert {protocol.declared()["dataset"] for protocol in small} == {"digits"}
        assert all(protocol.declared().get("other", "digits") == "digits" for protocol in small)


def test_every_protocol_is_shown_and_the_larger_scale_has_the_more() -> None:
    shown = {scale: protocols_of(ITEMS, scale) for scale in SCALES}
    assert shown == SCALES
    assert set(SCALES["smoke"]) == set(SCALES["quick"]) < set(SCALES["paper"])
