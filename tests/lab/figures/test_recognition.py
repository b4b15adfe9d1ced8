"""Tables of recognition: rows are what was measured, and claims are decided by it."""

from typing import Any

import pytest

from superpose.lab.experiments.recognition.protocols import PAPER
from superpose.lab.figures import recognition
from superpose.lab.figures.document import grid
from superpose.lab.figures.items import ITEMS
from superpose.lab.figures.recognition import Part

MEASURES = {
    "told_all": 97.0,
    "accuracy": {"told": 98.2, "inputs": 98.15, "shortlist": 90.0, "entropy": 80.0},
    "task_right": {"inputs": 99.9, "shortlist": 91.0, "entropy": 81.0},
    "false_alarms": 0.5,
    "auroc_other_data": 0.995,
    "auroc_other_tasks": 0.98,
    "numbers_a_task": 2000,
    "bytes_a_task": 8000,
    "numbers_for_recognition": 1571,
    "bytes_for_recognition": 6284,
    "bytes_of_all": 5_000_000,
}


def part(name: str, measured: dict[str, Any] | None, **changes: Any) -> Part:
    protocol = PAPER[name]
    measures = None if measured is None else measured | changes
    return Part(name, protocol.words(), protocol.extras(), protocol.declared(), measures)


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {check["claim"].partition(" (")[0]: check["verdict"] for check in found["checks"]}


def test_a_row_is_what_was_measured() -> None:
    parts = [part("permuted-10", MEASURES), part("permuted-10-wide", None)]
    first, second = recognition.after_learning(parts, "paper")["rows"]
    assert (first["told"], first["inputs"], first["task_right"]) == (98.2, 98.15, 99.9)
    assert (first["tasks"], first["units"], first["bytes_for_recognition"]) == (10, "2 × 256", 6284)
    assert (second["units"], second["told"], second["seeds"]) == ("2 × 1000", None, 0)
    assert (
        "| permuted-10 | 10 | 2 × 256 | – | 98.20 | 98.15 | 99.90 | – | 0.9950 | 0.9800 |"
        in grid(recognition.after_learning(parts, "paper"))
    )


@pytest.mark.parametrize(
    ("inputs", "close", "enough"),
    [(98.0, "fails", "holds"), (98.1, "holds", "holds"), (97.99, "fails", "fails")],
)
def test_claims_are_decided_by_the_measures(inputs: float, close: str, enough: str) -> None:
    accuracy = MEASURES["accuracy"] | {"told": 98.2 - 1e-9, "inputs": inputs}  # type: ignore[operator]
    wide = part("permuted-10-wide", MEASURES, accuracy=accuracy)
    assert verdicts(recognition.after_learning([wide], "paper")) == {
        "permuted-10-wide: found is within 0.1 points of told": close,
        "permuted-10-wide: found is 98 % or more": enough,
        "permuted-10-wide: AUROC of known rows against fashion-mnist is 0.99 or more": "holds",
        "permuted-10-wide: AUROC of known rows against tasks not learned is 0.99 or more": "fails",
    }
    quick = verdicts(recognition.after_learning([wide], "quick"))
    assert "permuted-10-wide: found is 98 % or more" not in quick


def test_tasks_that_turn_have_no_claim_on_tasks_not_learned() -> None:
    turned = recognition.after_learning([part("rotated-36", MEASURES)], "paper")
    assert len(turned["checks"]) == 1
    assert turned["degrees"] == {}
    measures = MEASURES | {"degrees": {"0": 3, "10": 1}, "degrees_off_if_wrong": 10.0}
    turned = recognition.after_learning([part("rotated-36", measures)], "paper")
    assert turned["degrees"] == {"rotated-36": {"0": 3, "10": 1}}
    assert turned["rows"][0]["degrees_off_if_wrong"] == 10.0


STREAM = {
    "told": 95.0,
    "found": 94.4,
    "found_together": 95.0,
    "tasks": 10,
    "contexts": 12,
    "bytes_a_task": 6284,
    "bytes_for_recognition": 6284,
    "spans": [[0, 0, 5, {"0": 5}]],
    "begun": [{"context": 0, "step": 0, "task": 0}],
    "found_over_time": [[5, 0.9]],
    "told_over_time": [[5, 0.9]],
}


def test_streams_are_judged_by_accuracy_and_by_contexts() -> None:
    names = ["stream-permuted-10: found is within 0.5 points of told"]
    names += ["stream-permuted-10: 10 ± 1 contexts are begun"]
    bad = verdicts(recognition.while_learning([part("stream-permuted-10", STREAM)], "quick"))
    assert bad == dict.fromkeys(names, "fails")
    good = part("stream-permuted-10", STREAM, found=94.6, contexts=9)
    assert verdicts(recognition.while_learning([good], "quick")) == dict.fromkeys(names, "holds")
    turning = part("stream-rotating-fashion", STREAM, found=81.9, found_together=82.1)
    claims = recognition.while_learning([turning], "paper")["checks"]
    judged = [(claim["ours"], claim["verdict"]) for claim in claims]
    assert judged == [("81.90", "fails"), ("82.10", "holds")]
    assert recognition.while_learning([turning], "quick")["checks"] == []


def test_evidence_is_a_row_each_with_what_is_kept_for_it() -> None:
    measures = MEASURES | {"task_right": {"inputs": 90.0, "shortlist": 91.0, "entropy": 81.0}}
    measures["task_right"] |= {"log-sum-exp": 80.0, "gradient": 12.0}  # type: ignore[operator]
    found = recognition.by_evidence([part("permuted-10", measures)], "paper")
    kept = {row["evidence"]: (row["accuracy"], row["numbers"]) for row in found["rows"]}
    assert kept == {
        "inputs": (98.15, 1571),
        "shortlist": (90.0, 1571),
        "entropy": (80.0, 0),
        "log-sum-exp": (None, 0),
        "gradient": (None, 0),
    }
    assert [check["verdict"] for check in found["checks"]] == ["fails", "holds", "holds", "holds"]


def test_natural_images_are_judged_by_the_share_that_the_best_evidence_keeps() -> None:
    def verdict(best: float) -> str:
        accuracy = {"told": 80.0, "log-sum-exp": 30.0, "inputs of head": best}
        one = part("cifar100-pretrained", MEASURES, accuracy=accuracy)
        return str(recognition.natural_images([one], "paper")["checks"][0]["verdict"])

    assert (verdict(45.0), verdict(46.0)) == ("fails", "holds")  # 56.7 % of what is told


def test_doubt_is_judged_beside_the_same_method_without() -> None:
    plain = MEASURES | {"task_right": {"log-sum-exp": 97.0, "entropy": 93.0}, "told_all": 96.0}
    doubt = MEASURES | {"task_right": {"log-sum-exp": 99.0, "entropy": 92.0}, "told_all": 94.9}
    methods = {"hadamard+projection": plain, "hadamard+projection+doubt": doubt}
    found = recognition.doubting([part("doubt", {"methods": methods})], "paper")
    assert [check["verdict"] for check in found["checks"]] == ["holds", "fails", "fails"]
    assert [row["label"] for row in found["rows"]] == [
        name for name in methods for _ in ("log-sum-exp", "entropy")
    ]


@pytest.mark.parametrize("name", [name for name in ITEMS if name.startswith("recognise-")])
def test_what_was_not_measured_is_not_run_yet(name: str) -> None:
    item: Any = ITEMS[name]
    found = item.summarise([part(one, None) for one in item.names], "paper")
    assert {check["verdict"] for check in found["checks"]} == {"not run yet"}
    assert not item.shows(found)
