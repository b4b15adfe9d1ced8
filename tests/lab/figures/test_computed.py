"""Figures that need no training: geometry, samples of images, propositions."""

from typing import Any

import pytest

from superpose import contexts
from superpose.lab.data.rotating import rotate
from superpose.lab.figures import (
    geometry,
    samples,
)


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
