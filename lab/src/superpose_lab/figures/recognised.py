"""Tables of recognition: after learning, while learning, and by kind of evidence."""

from collections.abc import Sequence
from dataclasses import dataclass

from superpose import SuperposeError
from superpose_lab.collect import RECOGNITION
from superpose_lab.experiments.recognition.protocol import (
    Measures,
    RecognitionProtocol,
    options_in_words,
)
from superpose_lab.figures.table import Column, Row, Table
from superpose_lab.results import Results

AFTER_LEARNING = (
    Column("run", "measures"),
    Column("tasks", "tasks", "number"),
    Column("units", "hidden units"),
    Column("extras", "options of `superpose`"),
    Column("told", "task given, %", "points"),
    Column("inputs", "recognised by inputs, %", "points"),
    Column("task_right", "task right, %", "points"),
    Column("degrees_off_if_wrong", "a wrong task is off by, °", "float"),
    Column("auroc_other_data", "AUROC, other data", "area"),
    Column("auroc_other_tasks", "AUROC, other tasks", "area"),
    Column("false_alarms", "false alarms, %", "points"),
    Column("numbers_a_task", "numbers a task", "number"),
    Column("bytes_a_task", "bytes a task", "number"),
    Column("bytes_for_recognition", "bytes of them for recognition", "number"),
    Column("bytes_of_all", "bytes of all", "number"),
)
WHILE_LEARNING = (
    Column("run", "measures"),
    Column("stream", "stream"),
    Column("told", "task given, %", "points"),
    Column("found", "recognised row by row, %", "points"),
    Column("found_together", "recognised together, %", "points"),
    Column("tasks", "tasks", "number"),
    Column("contexts", "contexts begun", "number"),
    Column("bytes_a_task", "bytes a context", "number"),
    Column("bytes_for_recognition", "bytes of them for recognition", "number"),
)
BY_EVIDENCE = (
    Column("label", "run"),
    Column("evidence", "evidence"),
    Column("task_right", "task right, %", "points"),
    Column("accuracy", "accuracy, %", "points"),
    Column("told", "task given, %", "points"),
    Column("numbers", "numbers a task for it", "number"),
)


@dataclass(frozen=True)
class Part:
    """A protocol of a table, and its measures, if there are any."""

    name: str
    protocol: RecognitionProtocol
    measures: Measures | None

    @property
    def extras(self) -> str:
        return options_in_words(getattr(self.protocol, "options", {}))

    @property
    def words(self) -> str:
        return ", ".join(words for words in (self.protocol.words(), self.extras) if words)


def measures_of(results: Results, name: str, protocol: RecognitionProtocol) -> Measures | None:
    """The measures of a protocol, if there are any; an error if another one has its name."""
    line = results.one(RECOGNITION, name)
    if line is None:
        return None
    if (other := protocol.difference(line["protocol"])) is not None:
        raise SuperposeError(
            f"{name} in {results.folder / RECOGNITION}.jsonl was measured with {other}: take its "
            "line out, or choose another --out"
        )
    measures: Measures = line["measures"]
    return measures


def after_learning(parts: Sequence[Part]) -> Table:
    """A row for each protocol: accuracies, rows of no task, and numbers stored."""
    rows = []
    for part in parts:
        about, measures = part.protocol.declared(), part.measures or {}
        row = _row(AFTER_LEARNING, measures)
        row |= {"run": part.name, "tasks": about["tasks"], "units": f"2 × {about['units']}"}
        row |= {"extras": part.extras or "–", "seeds": int(part.measures is not None)}
        if measures:
            row |= {kind: measures["accuracy"][kind] for kind in ("told", "inputs")}
            row |= {"task_right": measures["task_right"]["inputs"]}
        rows.append(row)
    turns = {p.name: p.measures["degrees"] for p in parts if p.measures and "degrees" in p.measures}
    return Table(AFTER_LEARNING, rows, picture={"bars": _bars(parts), "degrees": turns})


def while_learning(parts: Sequence[Part]) -> Table:
    """A row for each stream: accuracies with tasks given and recognised, and contexts begun."""
    rows = [
        _row(WHILE_LEARNING, part.measures or {})
        | {"run": part.name, "stream": part.words, "seeds": int(part.measures is not None)}
        for part in parts
    ]
    streams = {part.name: part.measures for part in parts if part.measures is not None}
    return Table(WHILE_LEARNING, rows, picture={"streams": streams})


def by_evidence(parts: Sequence[Part]) -> Table:
    """A row for each kind of evidence."""
    bars = _bars(parts)
    empty = [
        _row(BY_EVIDENCE, {}) | {"label": part.name, "evidence": "–", "seeds": 0}
        for part in parts
        if part.measures is None
    ]
    return Table(BY_EVIDENCE, [*bars, *empty], picture={"bars": bars})


def _row(columns: Sequence[Column], measures: Measures) -> Row:
    return {column.key: measures.get(column.key) for column in columns}


def _bars(parts: Sequence[Part]) -> list[Row]:
    measured: list[tuple[str, Measures]] = []
    for part in parts:
        if part.measures is not None:
            measured += part.measures.get("methods", {part.name: part.measures}).items()
    rows = []
    for label, measures in measured:
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
