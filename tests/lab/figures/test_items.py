"""The list of figures and tables, and the runs that each needs."""

from typing import get_args

from lab.figures.fakes import LEARNED

from superpose.lab.figures import (
    FigureName,
)
from superpose.lab.figures.items import ITEMS


def test_every_name_of_the_issue_is_there() -> None:
    assert set(ITEMS) == set(get_args(FigureName))
    assert len(ITEMS) == 17


def test_figures_share_their_runs() -> None:
    folders = {name: {w.folder for w in ITEMS[name].wanted("paper")} for name in LEARNED}
    assert "permuting-mnist/binary-u256" in folders["fig-size"] & folders["fig-methods"]
    assert folders["fig-rotating-close"] < folders["fig-rotating-fashion"]
    assert folders["fig-permuting-2000"] < folders["table-average"]


def test_small_scales_need_no_data_that_must_be_fetched() -> None:
    for name in LEARNED:
        assert {w.settings.dataset for w in ITEMS[name].wanted("smoke")} == {"digits"}
