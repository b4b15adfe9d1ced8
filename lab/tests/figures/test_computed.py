"""Figures that need no training: geometry, samples of images, propositions."""

from typing import Any

import pytest

from superpose import contexts
from superpose_lab.data.rotating import rotate
from superpose_lab.figures import geometry, propositions, samples
from superpose_lab.figures.table import Table


def outcomes(table: Table) -> list[str]:
    return [claim.outcome for claim in table.claims]


def test_the_geometry_is_that_of_each_family_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcomes(geometry.table("smoke")) == ["agrees"] * 3
    assert [row["different"] for row in geometry.table("smoke").rows] == [8, 399, 399, 399, 6, 32]
    known = contexts.family
    for number, name in enumerate(geometry.IN_THE_PAPER):
        for wrong in {"identity", "permutation", "hadamard"} - {name}:
            swapped = {name: wrong}
            monkeypatch.setattr(
                geometry.contexts, "family", lambda n, swapped=swapped: known(swapped.get(n, n))
            )
            expected = ["agrees"] * 3
            expected[number] = "differs"
            assert outcomes(geometry.table("smoke")) == expected


@pytest.mark.parametrize("wrong", [lambda x, degrees: x, lambda x, degrees: rotate(x, -degrees)])
def test_images_that_do_not_turn_as_the_paper_says_are_noticed(
    wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outcomes(samples.rotating("smoke", None)) == ["agrees"]
    monkeypatch.setattr("superpose_lab.data.rotating.rotate", wrong)
    assert outcomes(samples.rotating("smoke", None)) == ["differs"]


def test_classes_that_are_not_the_papers_are_noticed() -> None:
    assert outcomes(samples.incremental("smoke", None)) == ["differs"]  # digits, two at a time


def test_propositions_are_met_and_a_wrong_prediction_is_not() -> None:
    table = propositions.table("smoke")
    assert outcomes(table) == ["agrees"] * 12
    measured = [row for row in table.details if row["family"] == "binary"]
    for change, expected in (
        ({"ratio": 2.0}, ["agrees", "differs", "agrees"]),
        ({"gradient_error": 1e-3}, ["agrees", "agrees", "differs"]),
        ({"bias": 9.0}, ["differs", "agrees", "agrees"]),
        ({"bias": 9.0, "bias_predicted": 9.0}, ["differs", "agrees", "agrees"]),
    ):
        wrong = [row | change for row in measured]
        claims = propositions._claims(propositions._summary("binary", wrong), wrong)
        assert [claim.outcome for claim in claims] == expected
    permutation = next(row for row in table.rows if row["family"] == "permutation")
    assert permutation["bias"] > 0
    assert permutation["off"] < propositions.ERRORS
