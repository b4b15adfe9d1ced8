"""The Markdown document of all figures and tables, made from the JSON of the names."""

from pathlib import Path
from typing import Any, get_args

from superpose.errors import SuperposeError
from superpose.lab.figures import FigureName, Scale
from superpose.lab.figures.findings import (
    ALONE,
    ALONE_ALL,
    BETTER,
    BEYOND,
    DIFFERS,
    FAILS,
    HOLDS,
    NOT_RUN,
    POINT,
    REPRODUCED,
    UNDECIDED,
    WORSE,
    Check,
    Findings,
    Measure,
)
from superpose.lab.figures.runs import read

MARKS = {
    REPRODUCED: "✓",
    DIFFERS: "✗",
    HOLDS: "✓",
    FAILS: "✗",
    BETTER: "↑",
    WORSE: "↓",
    UNDECIDED: "~",
    NOT_RUN: "…",
}
SEVERAL = {DIFFERS: "differ", HOLDS: "hold", FAILS: "fail"}
REMARKS = {
    "paper": "",
    "quick": "These runs are shorter than the paper's: they show which method is ahead, not by how "
    "much.",
    "smoke": "These runs take seconds: they test the commands, and their accuracies mean nothing.",
}
VERDICTS = (
    ("✓ reproduced", "the paper's claim is confirmed"),
    ("✗ differs", "the paper's claim is not confirmed"),
    ("✓ holds, ✗ fails", "the same for a claim that is not in the paper"),
    (
        "↑ better, ↓ worse",
        "a change to the paper's method, judged by the mean accuracy of all tasks",
    ),
    ("~ undecided", "the difference is smaller than what seeds differ by"),
    ("… not run yet", "a run is missing"),
)
NOTES = (
    "Accuracies are in percent: mean ± standard deviation over seeds. n is the number of seeds.",
    f"A number is reproduced if it is within {100 * POINT:g} point of the paper's. Where the paper "
    f"says *virtually unchanged* or *unaffected*, a loss of {100 * POINT:g} point is allowed.",
    "Two methods are compared on the seeds that both have. Their means must differ by more than "
    f"the standard deviation between seeds; with one seed each, by more than {100 * ALONE:g} "
    f"points ({100 * ALONE_ALL:g} point for a mean of all tasks).",
    "Where the paper shows a curve without numbers, the claims of its text are checked.",
)
"""How the tables are read."""
LONG = 24  # rows; a longer table is in the JSON, not in the document


def load(folder: Path, scale: Scale) -> dict[str, Findings]:
    """The JSON of every name that there is, in the paper's order."""
    found = {name: folder / scale / f"{name}.json" for name in get_args(FigureName)}
    tables = {name: read(path) for name, path in found.items() if path.exists()}
    if not tables:
        raise SuperposeError(
            f"{folder / scale} has no results: make them with "
            f"superpose reproduce all --scale {scale} --out {folder}"
        )
    return tables


def state(table: Findings) -> str:
    """How far a name is: whether all its runs were made."""
    missing = len(table["missing"])
    if not missing:
        return "complete"
    if not any(row.get("seeds") for row in table["rows"]):
        return "not run yet"
    return f"incomplete: {missing} {'run is' if missing == 1 else 'runs are'} missing"


def summary(tables: dict[str, Findings]) -> list[str]:
    """The verdicts of all names in two sentences: on the paper's claims, and on others."""
    checks = [check for table in tables.values() for check in table["checks"]]
    papers = [check for check in checks if check["paper"] != BEYOND]
    beyond = [check for check in checks if check["paper"] == BEYOND]
    return [
        f"Of {len(papers)} claims of the paper: {tally(papers)}.",
        f"Of {len(beyond)} claims that go beyond it: {tally(beyond)}.",
    ]


def markdown(folder: Path, scale: Scale, pictures: str) -> str:
    """The document; `pictures` is the way to the pictures from where it will be."""
    tables = load(folder, scale)
    parts = [
        "# Reproduction of the paper",
        "`superpose reproduce` trains the networks of [*Superposition of many models into one*]"
        "(https://arxiv.org/abs/1902.05522) again and compares the numbers. This page shows every "
        "figure and table of the paper, with the paper's numbers beside ours, and figures that go "
        "beyond it: other recipes, and tasks that are recognised.",
        REMARKS[scale],
        " ".join(summary(tables)),
        "| name | in the paper | status | verdicts |\n|---|---|---|---|\n"
        + "\n".join(
            f"| [{name}](#{name}) | {t['source']} | {state(t)} | {tally(t['checks'])} |"
            for name, t in tables.items()
        ),
        _differing(tables),
        "## How to read the tables",
        "| verdict | meaning |\n|---|---|\n"
        + "\n".join(f"| {verdict} | {meaning} |" for verdict, meaning in VERDICTS),
        "\n".join(f"- {note}" for note in NOTES),
        "## How to make them again",
        f"```console\nsuperpose reproduce fig-methods --scale {scale}\n"
        f"superpose reproduce all --scale {scale} --draw-only\n"
        f"superpose report results --scale {scale}\n```",
        "The first command trains the missing runs of one figure and draws it; a stopped run "
        "continues. The second draws all figures from finished runs and trains nothing. The third "
        "puts everything on one HTML page.",
        "| file | contents |\n|---|---|\n"
        "| `results/runs/` | settings and results of every run |\n"
        f"| `results/{scale}/NAME.json` | the numbers and verdicts of a figure or table |\n"
        f"| `results/{scale}/NAME.md` | remarks on them, written by hand |",
        f"This page is generated from these files by `superpose report results --scale {scale} "
        "--markdown docs/reproduction.md`.",
    ]
    for name, table in tables.items():
        parts += [f"## {name}", *_section(name, table, folder / scale, pictures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def differing(tables: dict[str, Findings]) -> list[tuple[str, Check]]:
    """The claims of the paper that are not confirmed, each with the name that it is part of."""
    return [
        (name, check)
        for name, table in tables.items()
        for check in table["checks"]
        if check["verdict"] == DIFFERS
    ]


def _differing(tables: dict[str, Findings]) -> str:
    lines = [
        f"| [{name}](#{name}) | {check['claim']} | {check['paper']} | {check['ours']} |"
        for name, check in differing(tables)
    ]
    head = "## Where the results differ from the paper\n\n| name | claim | paper | measured |"
    return "\n".join([head, "|---|---|---|---|", *lines]) if lines else ""


def _section(name: str, table: Findings, folder: Path, pictures: str) -> list[str]:
    files = f"`{table['command']}`, [numbers]({pictures}/{name}.json)"
    parts = [f"**{table['title']}** ({table['source']}).{setting(table)}"]
    parts.append(f"Status: {state(table)}. Made by {files}.")
    if (folder / f"{name}.png").exists():
        parts.append(f"![{table['title']}]({pictures}/{name}.png)")
    checks = [
        f"| {c['claim']} | {c['paper']} | {c['ours']} | {MARKS[c['verdict']]} {c['verdict']} |"
        for c in table["checks"]
    ]
    if checks:
        head = "| claim | paper | measured | verdict |\n|---|---|---|---|\n"
        parts.append(head + "\n".join(checks))
    parts.append(remarks(folder, name))
    if len(table["rows"]) <= LONG:
        parts.append(grid(table))
    return parts


def grid(table: Findings, *more: Findings) -> str:
    """The rows of a table as Markdown; those of others that have the same columns, below."""
    head = [column["title"] for column in table["columns"]]
    sides = ["---" if c["kind"] == "text" else "---:" for c in table["columns"]]
    lines = [line for each in (table, *more) for line in rows(each)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, sides, *lines])


def setting(table: Findings) -> str:
    """What was run, as a sentence after another one; nothing if it is not told."""
    about = table.get("about")
    return f" {about[0].upper()}{about[1:]}." if about else ""


def remarks(folder: Path, name: str) -> str:
    """What was found out about a name, if someone wrote it down: Markdown."""
    path = folder / f"{name}.md"
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def rows(table: Findings) -> list[list[str]]:
    """The numbers of a table as text."""
    columns = table["columns"]
    return [[_cell(row[c["key"]], c["kind"]) for c in columns] for row in table["rows"]]


def _cell(value: Any, kind: str) -> str:
    """A value as text.

    >>> one = {"mean": 0.9424, "deviation": None, "seeds": {"0": 0.9424}}
    >>> _cell(one, "share"), _cell(12345, "number")
    ('94.24', '12,345')
    """
    if value is None:
        return "–"
    if kind == "share":
        return str(Measure(**value))
    if kind == "percent":
        return f"{100 * value:.1f}"
    if kind == "points":
        return f"{value:.2f}"
    if kind == "area":
        return f"{value:.4f}"
    if kind == "float":
        return f"{value:.3g}"
    return f"{value:,}" if kind == "number" else str(value)


def tally(checks: list[Check]) -> str:
    """How often each verdict is among some checks.

    >>> tally([{"verdict": "holds"}, {"verdict": "differs"}, {"verdict": "holds"}])
    '1 differs, 2 hold'
    """
    verdicts = [check["verdict"] for check in checks]
    counted = [(verdicts.count(verdict), verdict) for verdict in MARKS]
    return ", ".join(
        f"{count} {SEVERAL.get(verdict, verdict) if count > 1 else verdict}"
        for count, verdict in counted
        if count
    )
