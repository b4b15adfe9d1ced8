"""Verdicts: what was measured beside what the paper says."""

from superpose.lab.figures.findings import Measure, above, measure, tried, unchanged, within


def test_verdicts() -> None:
    def of(*values: float) -> Measure | None:
        return measure(dict(enumerate(values)))

    assert above("", of(0.9, 0.92), of(0.8, 0.82))["verdict"] == "reproduced"
    assert above("", of(0.8, 0.82), of(0.9, 0.92))["verdict"] == "differs"
    assert above("", of(0.8, 1.0), of(0.7, 0.9))["verdict"] == "undecided"
    assert above("", of(0.9), of(0.81))["verdict"] == "undecided"
    assert above("", of(0.9), None)["verdict"] == "not run yet"
    extra = above("", of(0.8, 0.8), of(0.9, 0.9), extra=True)
    assert (extra["paper"], extra["verdict"]) == ("not in the paper", "fails")
    assert within("", 0.976, of(0.967))["verdict"] == "reproduced"
    assert within("", 0.976, of(0.965))["verdict"] == "differs"
    assert unchanged("", {0: 0.011, 1: 0.008})["verdict"] == "reproduced"
    assert unchanged("", {0: 0.02})["verdict"] == "differs"
    assert tried("", of(0.92), of(0.9))["verdict"] == "better"
    assert tried("", of(0.88), of(0.9))["verdict"] == "worse"
    assert tried("", of(0.905), of(0.9))["verdict"] == "undecided"


def test_methods_are_compared_over_the_seeds_that_both_have() -> None:
    one, several = measure({0: 0.86}), measure({0: 0.83, 1: 0.7, 2: 0.72})
    compared = above("", one, several)
    assert compared["ours"] == "86.00 against 83.00 (n = 1)"
    assert compared["verdict"] == "undecided"
    assert above("", measure({5: 0.86}), several)["verdict"] == "not run yet"
