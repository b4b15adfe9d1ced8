"""Tables of tasks that are found: after learning, while learning, and by kind of evidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superpose.lab.experiments.recognition.protocol import Found
from superpose.lab.figures import Scale
from superpose.lab.figures.findings import (
    DIFFERS,
    NOT_RUN,
    REPRODUCED,
    Check,
    Findings,
    Row,
    check,
    column,
)


@dataclass(frozen=True)
class Part:
    """A protocol of a table, and what was measured of it, if it was."""

    name: str
    words: str
    extras: str
    declared: Found
    found: Found | None


Holds = Callable[[Found], tuple[bool, str]]
CLOSE = {"permuted-10": 0.1, "permuted-10-wide": 0.1, "permuted-50": 0.2}
"""Points that finding the task may cost."""
ABSOLUTE = {
    "permuted-10-wide": (98.0, "a Bayesian hypernetwork 96.14, separate networks 94.70"),
    "permuted-250": (95.0, "SupSup 94.91, with 58 MB of masks"),
}
"""Accuracies to reach with the task found, beside those of others."""
AREA = 0.99
STREAM_COST, MORE_CONTEXTS = 0.5, 1
TOGETHER = "found_together"
UPRIGHT = (82.0, "ten contexts told 82.3, fast-localmix 77.4, fast 73.1")
KEPT = (50.80 / 89.52, "separate networks: 89.52 told, 50.80 by entropy")
DOUBT_COST = 1.0


def after_learning(parts: Sequence[Part], scale: Scale) -> Findings:
    """A row for each protocol: told and found by inputs, rows of no task, and what is stored."""
    columns = [
        column("run", "measures"),
        column("tasks", "tasks", "number"),
        column("units", "hidden units"),
        column("extras", "options of `superpose`"),
        column("told", "told, %", "points"),
        column("inputs", "found by inputs, %", "points"),
        column("task_right", "task right, %", "points"),
        column("degrees_off_if_wrong", "a wrong task is off by, °", "float"),
        column("auroc_other_data", "AUROC, other data", "area"),
        column("auroc_other_tasks", "AUROC, other tasks", "area"),
        column("false_alarms", "false alarms, %", "points"),
        column("numbers_a_task", "numbers a task", "number"),
        column("bytes_a_task", "bytes a task", "number"),
        column("bytes_for_recognition", "bytes of them for recognition", "number"),
        column("bytes_of_all", "bytes of all", "number"),
    ]
    rows = []
    for part in parts:
        about = part.declared
        row: Row = {each["key"]: None for each in columns}
        row |= {"run": part.name, "tasks": about["tasks"], "units": f"2 × {about['units']}"}
        row |= {"extras": part.extras or "–", "seeds": 0}
        if (found := part.found) is not None:
            row |= {key: found.get(key) for key in row if row[key] is None}
            row |= {kind: found["accuracy"][kind] for kind in ("told", "inputs")}
            row |= {"task_right": found["task_right"]["inputs"], "seeds": 1}
        rows.append(row)
    checks = [one for part in parts for one in _found_after(part, scale)]
    measured = {part.name: part.found for part in parts if part.found is not None}
    turns = {name: found["degrees"] for name, found in measured.items() if "degrees" in found}
    more = {"bars": _bars(parts), "degrees": turns}
    return _findings(parts, columns, rows, checks) | more


def _found_after(part: Part, scale: Scale) -> list[Check]:
    name, about = part.name, part.declared
    claims: list[tuple[str, Holds]] = []
    if name in CLOSE:
        most = CLOSE[name]

        def close(found: Found) -> tuple[bool, str]:
            told, inputs = found["accuracy"]["told"], found["accuracy"]["inputs"]
            return told - inputs <= most, f"{inputs:.2f} found, {told:.2f} told"

        claims.append((f"{name}: found is within {most:g} points of told", close))
    if name in ABSOLUTE and scale == "paper":
        least, others = ABSOLUTE[name]

        def enough(found: Found) -> tuple[bool, str]:
            stored = f"{found['bytes_of_all'] / 1e6:.1f} MB in all"
            inputs = found["accuracy"]["inputs"]
            return inputs >= least, f"{inputs:.2f}, {stored}"

        claims.append((f"{name}: found is {least:g} % or more ({others})", enough))
    kinds = {"auroc_other_data": about["other"], "auroc_other_tasks": "tasks not learned"}
    if about["stream"] != "permuting":
        del kinds["auroc_other_tasks"]
    for key, what in kinds.items():
        text = f"{name}: AUROC of known rows against {what} is {AREA:g} or more"
        claims.append((text, _area(key)))
    return [_checked(part, claim, holds) for claim, holds in claims]


def _area(key: str) -> Holds:
    return lambda found: (found[key] >= AREA, f"{found[key]:.4f}")


def while_learning(parts: Sequence[Part], scale: Scale) -> Findings:
    """A row for each stream: told and found, and how many contexts were begun."""
    columns = [
        column("run", "measures"),
        column("stream", "stream"),
        column("told", "told, %", "points"),
        column("found", "found, %", "points"),
        column("found_together", "found together, %", "points"),
        column("tasks", "tasks", "number"),
        column("contexts", "contexts begun", "number"),
        column("bytes_a_task", "bytes a context", "number"),
        column("bytes_for_recognition", "bytes of them for recognition", "number"),
    ]
    rows = []
    for part in parts:
        row: Row = {each["key"]: None for each in columns}
        row |= {"run": part.name, "stream": _words(part), "seeds": int(part.found is not None)}
        row |= {key: (part.found or {}).get(key) for key in row if row[key] is None}
        rows.append(row)
    checks = [one for part in parts for one in _found_while(part, scale)]
    kept = ("spans", "begun", "contexts", "found_over_time", "told_over_time")
    streams = {
        part.name: {key: part.found[key] for key in kept}
        for part in parts
        if part.found is not None
    }
    return _findings(parts, columns, rows, checks) | {"streams": streams}


def _found_while(part: Part, scale: Scale) -> list[Check]:
    name = part.name
    if part.declared["stream"] == "rotating":
        least, others = UPRIGHT
        if scale != "paper":
            return []

        def upright(measure: str) -> Holds:
            return lambda found: (found[measure] >= least, f"{found[measure]:.2f}")

        claim = f"{least:g} % or more ({others})"
        return [
            _checked(part, f"{name}: found from single rows, {claim}", upright("found")),
            _checked(part, f"{name}: rows known to be of one task, {claim}", upright(TOGETHER)),
        ]

    def close(found: Found) -> tuple[bool, str]:
        told, own = found["told"], found["found"]
        return told - own <= STREAM_COST, f"{own:.2f} found, {told:.2f} told"

    tasks = part.declared["length"]["tasks"]

    def begun(found: Found) -> tuple[bool, str]:
        return abs(found["contexts"] - tasks) <= MORE_CONTEXTS, f"{found['contexts']} contexts"

    return [
        _checked(part, f"{name}: found is within {STREAM_COST:g} points of told", close),
        _checked(part, f"{name}: {tasks} ± {MORE_CONTEXTS} contexts are begun", begun),
    ]


def by_evidence(parts: Sequence[Part], scale: Scale) -> Findings:
    """A row for each kind of evidence."""
    return _evidence(parts, [one for part in parts for one in _inputs_first(part)])


def _inputs_first(part: Part) -> list[Check]:
    def before(kind: str) -> Holds:
        def holds(found: Found) -> tuple[bool, str]:
            right = found["task_right"]
            return right["inputs"] > right[kind], f"{right['inputs']:.2f} against {right[kind]:.2f}"

        return holds

    return [
        _checked(part, f"inputs name the task more often than {kind}", before(kind))
        for kind in ("shortlist", "log-sum-exp", "entropy", "gradient")
    ]


def natural_images(parts: Sequence[Part], scale: Scale) -> Findings:
    """The same for natural images: how much accuracy falls when the task is not told."""
    share, others = KEPT

    def more(found: Found) -> tuple[bool, str]:
        told, *rest = found["accuracy"].values()
        return max(rest) > share * told, f"{told:.2f} told, {max(rest):.2f} found"

    claim = f"the best evidence keeps more than {100 * share:.1f} % of the accuracy ({others})"
    return _evidence(parts, [_checked(part, f"{part.name}: {claim}", more) for part in parts])


def doubting(parts: Sequence[Part], scale: Scale) -> Findings:
    """The same by method of learning."""

    def better(kind: str) -> Holds:
        def holds(found: Found) -> tuple[bool, str]:
            plain, doubt = (each["task_right"][kind] for each in found["methods"].values())
            return doubt > plain, f"{doubt:.2f} against {plain:.2f}"

        return holds

    def cheap(found: Found) -> tuple[bool, str]:
        plain, doubt = (each["told_all"] for each in found["methods"].values())
        return plain - doubt <= DOUBT_COST, f"{doubt:.2f} against {plain:.2f}"

    claims = [
        (f"with doubt, {kind} names the task more often", better(kind))
        for kind in ("log-sum-exp", "entropy")
    ]
    claims.append((f"doubt costs at most {DOUBT_COST:g} point of accuracy", cheap))
    return _evidence(parts, [_checked(part, *claim) for part in parts for claim in claims])


def _evidence(parts: Sequence[Part], checks: list[Check]) -> Findings:
    columns = [
        column("label", "run"),
        column("evidence", "evidence"),
        column("task_right", "task right, %", "points"),
        column("accuracy", "accuracy, %", "points"),
        column("told", "told, %", "points"),
        column("numbers", "numbers a task for it", "number"),
    ]
    bars = _bars(parts)
    rows = list(bars)
    for part in parts:
        if part.found is None:
            empty: Row = {each["key"]: None for each in columns}
            rows.append(empty | {"label": part.name, "evidence": "–", "seeds": 0})
    return _findings(parts, columns, rows, checks) | {"bars": bars}


def _bars(parts: Sequence[Part]) -> list[Row]:
    """A row for each kind of evidence of all that was measured."""
    found: list[tuple[str, Found]] = []
    for part in parts:
        if part.found is not None:
            found += part.found.get("methods", {part.name: part.found}).items()
    rows = []
    for label, measures in found:
        for kind, right in measures["task_right"].items():
            kept = kind in ("inputs", "shortlist")
            numbers = measures["numbers_for_recognition"] if kept else 0
            rows.append(
                {
                    "label": label,
                    "evidence": kind,
                    "task_right": right,
                    "accuracy": measures["accuracy"].get(kind),
                    "told": measures["accuracy"].get("told", measures["told_all"]),
                    "numbers": measures.get("numbers_by_evidence", {}).get(kind, numbers),
                    "seeds": 1,
                }
            )
    return rows


def _words(part: Part) -> str:
    return ", ".join(words for words in (part.words, part.extras) if words)


def _findings(
    parts: Sequence[Part], columns: list[dict[str, str]], rows: list[Row], checks: list[Check]
) -> Findings:
    return {
        "about": "; ".join(f"{part.name}: {_words(part)}" for part in parts),
        "columns": columns,
        "rows": rows,
        "checks": checks,
    }


def _checked(part: Part, claim: str, holds: Holds) -> Check:
    if part.found is None:
        return check(claim, "", "–", NOT_RUN, extra=True)
    right, ours = holds(part.found)
    return check(claim, "", ours, REPRODUCED if right else DIFFERS, extra=True)
