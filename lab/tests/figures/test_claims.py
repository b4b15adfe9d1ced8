"""Claims: outcomes are decided by the numbers."""

from collections.abc import Callable

import pytest

from superpose_lab.figures import learned
from superpose_lab.figures.claims import Claim, above, exact, nothing, number, rising
from superpose_lab.figures.table import Measure, Row, measure


def of(*values: float) -> Measure | None:
    return measure(dict(enumerate(values)))


@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        (above("", of(0.9, 0.92), of(0.8, 0.82)), "agrees"),
        (above("", of(0.8, 0.82), of(0.9, 0.92)), "differs"),
        (above("", of(0.8, 1.0), of(0.7, 0.9)), "undecided"),
        (above("", of(0.9), of(0.81)), "undecided"),
        (above("", of(0.9), of(0.79)), "agrees"),
        (above("", of(0.9), None), "not run yet"),
        (above("", measure({5: 0.86}), of(0.5)), "not run yet"),
        (number("", 0.976, of(0.967)), "agrees"),
        (number("", 0.976, of(0.965)), "differs"),
        (number("", 0.976, None), "not run yet"),
        (nothing("", "unchanged", of(0.011, 0.008)), "agrees"),
        (nothing("", "unchanged", of(0.02)), "differs"),
        (rising("", [of(0.1), of(0.3), of(0.2)]), "differs"),
        (rising("", [of(0.1), of(0.2)]), "agrees"),
        (rising("", [of(0.1), None]), "not run yet"),
        (exact("", True, ""), "agrees"),
        (exact("", False, ""), "differs"),
    ],
)
def test_outcomes(claim: Claim, outcome: str) -> None:
    assert claim.outcome == outcome


def test_a_number_tells_theirs_ours_and_the_difference() -> None:
    claim = number("ewc", 0.97, of(0.6, 0.62))
    assert (claim.theirs, claim.ours, claim.difference) == ("97.0", "61.00 ± 1.41", "−36.00")
    assert (claim.kind, claim.seeds) == ("number", 2)


def test_methods_are_compared_over_the_seeds_that_both_have() -> None:
    one, several = measure({0: 0.86}), measure({0: 0.83, 1: 0.7, 2: 0.72})
    compared = above("", one, several)
    assert (compared.ours, compared.seeds) == ("86.00 against 83.00", 1)
    assert compared.outcome == "undecided"


def row(method: str, size: int = 256, **values: float) -> Row:
    measures = {name: of(value) for name, value in values.items()}
    return {"method": method, "size": size, "paper": learned.AVERAGE.get(method), **measures}


@pytest.mark.parametrize(("lower", "outcome"), [(0.005, "agrees"), (0.05, "differs")])
def test_forms_that_differ_in_large_networks_are_noticed(lower: float, outcome: str) -> None:
    names = ("standard", "binary", "complex", "onepower")
    rows = [row(n, first_task=0.9 - lower * (n == "onepower")) for n in names]
    assert learned.large_claims(rows)[-1].outcome == outcome


def test_a_smaller_network_than_the_papers_is_said() -> None:
    rows = [row("complex", 2000, mean_last_ten=0.97), row("complex", 1000, mean_last_ten=0.96)]
    texts = [claim.text for claim in learned.average_claims(rows)]
    assert texts[0] == "complex: mean of the last ten tasks"
    assert texts[1].endswith("at 1000 units, the paper's at 2000")


@pytest.mark.parametrize(
    ("claims", "count"),
    [(learned.close_claims, 2), (learned.selection_claims, 3), (learned.turning_claims, 5)],
)
def test_what_was_not_run_is_not_run_yet(
    claims: Callable[[list[Row]], list[Claim]], count: int
) -> None:
    names = ("standard", "binary", "complex", "onepower", "rotation", "fast", "fast-localmix")
    rows = [row(name) | {"mean": None, "swing": None} for name in names]
    made = claims(rows)
    assert [claim.outcome for claim in made] == ["not run yet"] * count


def test_icifar_compares_within_a_width() -> None:
    rows = [
        row(name, width, first_task=end + width / 1000, lost=0.05)
        for width in (16, 32)
        for name, end in (("binary", 0.8), ("multihead", 0.5), ("standard", 0.2))
    ]
    claims = learned.icifar_claims(rows)
    assert [claim.outcome for claim in claims] == ["agrees", "agrees", "differs"] * 2
    assert claims[3].text == "width 32: multihead is above standard"
    assert claims[3].ours == "53.20 against 23.20"
