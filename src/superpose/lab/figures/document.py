"""The documents: Markdown and one self-contained HTML page, made from the JSON of the names."""

import base64
import html
from pathlib import Path
from typing import Any, get_args

from markdown_it import MarkdownIt

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
REMARKS = {
    "paper": "",
    "quick": "These runs are shorter than the paper's: they show which way things go.",
    "smoke": "These runs take seconds: they show that the machinery works, and nothing else.",
}
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
    """How far a name is: what was run at its scale, and what was not."""
    missing = len(table["missing"])
    if not missing:
        return "complete"
    if not any(row.get("seeds") for row in table["rows"]):
        return f"not run yet at scale {table['scale']}"
    return f"in part: {missing} of its runs not run yet at scale {table['scale']}"


def markdown(folder: Path, scale: Scale, pictures: str) -> str:
    """The document; `pictures` is the way to the pictures from where it will be."""
    tables = load(folder, scale)
    checks = [check for table in tables.values() for check in table["checks"]]
    beyond = [check for check in checks if check["paper"] == BEYOND]
    papers = [check for check in checks if check["paper"] != BEYOND]
    parts = [
        "# The paper's figures and tables, reproduced",
        f"Made from the JSON files in `results/{scale}` by "
        f"`superpose report results --scale {scale} --markdown FILE`; not edited by hand. "
        f"`superpose reproduce NAME --scale {scale}` runs what a name lacks, goes on with what was "
        f"stopped, and draws it; `superpose reproduce all --scale {scale} --draw-only` only draws. "
        "`--adopt DIR` takes in runs that `superpose run` finished elsewhere. What was found out "
        f"about a name is written in `results/{scale}/NAME.md`, and shown here. Accuracies are in "
        "percent, mean ± standard deviation over seeds; n is the number of seeds. Every run's "
        "settings and results are in `results/runs`.",
        REMARKS[scale],
        f"What the paper says: {_tally(papers)}. What it does not say: {_tally(beyond)}.",
        f"A number is *reproduced* within {100 * POINT:g} point of the paper's, and *virtually "
        f"unchanged* or *unaffected* is a loss of at most {100 * POINT:g} point. Two methods are "
        "compared over the seeds that both have; which is better is *undecided* if the difference "
        "of the means is smaller than the deviation between seeds, or, for single seeds, than "
        f"{100 * ALONE:g} points ({100 * ALONE_ALL:g} for a mean of all tasks). What is not in the "
        "paper *holds* or *fails*, and what was tried beside the paper's method is *better* or "
        "*worse* than it. Where the paper shows a curve without numbers, what its text says about "
        "the curve is checked.",
        "| name | in the paper | state | checks |\n|---|---|---|---|\n"
        + "\n".join(
            f"| [{name}](#{name}) | {t['source']} | {state(t)} | {_tally(t['checks'])} |"
            for name, t in tables.items()
        ),
    ]
    for name, table in tables.items():
        parts += [f"## {name}", *_section(name, table, folder / scale, pictures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(name: str, table: Findings, folder: Path, pictures: str) -> list[str]:
    about = f" {_sentence(table['about'])}" if table.get("about") else ""
    files = f"Command: `{table['command']}`. File: `results/{table['scale']}/{name}.json`."
    intro = f"**{table['title']}** ({table['source']}).{about}\n\nState: {state(table)}. {files}"
    parts = [intro]
    if (folder / f"{name}.png").exists():
        parts.append(f"![{table['title']}]({pictures}/{name}.png)")
    checks = [
        f"| {c['claim']} | {c['paper']} | {c['ours']} | {MARKS[c['verdict']]} {c['verdict']} |"
        for c in table["checks"]
    ]
    parts.append(
        "| what is checked | paper | ours | verdict |\n|---|---|---|---|\n" + "\n".join(checks)
    )
    parts += _remarks(folder, name)
    rows = _rows(table)
    if len(rows) <= LONG:
        head = [column["title"] for column in table["columns"]]
        sides = ["---" if c["kind"] == "text" else "---:" for c in table["columns"]]
        lines = [head, sides, *rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return parts


def page(folder: Path, scale: Scale) -> str:
    """One HTML page that needs nothing beside it."""
    tables = load(folder, scale)
    links = "".join(
        f'<li><a href="#{name}">{name}</a>, {_tally(t["checks"])}</li>'
        for name, t in tables.items()
    )
    body = "".join(_html_section(name, table, folder / scale) for name, table in tables.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>superpose: the paper's figures and tables</title><style>{CSS}</style></head>"
        f"<body><h1>The paper's figures and tables, reproduced</h1><p>Scale <b>{scale}</b>. "
        f"{REMARKS[scale]}</p><ul>{links}</ul>{body}</body></html>\n"
    )


CSS = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{margin-top:3rem;border-top:1px solid #ddd;padding-top:1rem}img{max-width:100%}
ul{columns:2;padding-left:1.2rem}.wide{overflow-x:auto}code{background:#f4f4f4;padding:.1em .3em}
table{border-collapse:collapse;font-size:.85rem;margin:1rem 0}
td,th{padding:.25rem .6rem;border-bottom:1px solid #e5e5e5;text-align:left;vertical-align:top}
.n{text-align:right;font-variant-numeric:tabular-nums}.reproduced{color:#006b4f}
.holds,.better{color:#006b4f}.differs,.fails,.worse{color:#a83c00}.undecided,.not{color:#666}
"""


def _html_section(name: str, table: Findings, folder: Path) -> str:
    parts = [f'<h2 id="{name}">{name}: {html.escape(table["title"])}</h2>']
    about = html.escape(_sentence(table["about"])) if table.get("about") else ""
    parts.append(
        f"<p>{html.escape(table['source'])}, {html.escape(state(table))}. {about} "
        f"<code>{html.escape(table['command'])}</code></p>"
    )
    picture = folder / f"{name}.svg"
    if picture.exists():
        data = base64.b64encode(picture.read_bytes()).decode("ascii")
        alt = html.escape(table["title"])
        parts.append(f'<p><img alt="{alt}" src="data:image/svg+xml;base64,{data}"></p>')
    checks = "".join(
        f"<tr><td>{html.escape(c['claim'])}</td><td>{html.escape(c['paper'])}</td>"
        f'<td>{html.escape(c["ours"])}</td><td class="{c["verdict"].split()[0]}">'
        f"{MARKS[c['verdict']]} {c['verdict']}</td></tr>"
        for c in table["checks"]
    )
    head = "<tr><th>what is checked</th><th>paper</th><th>ours</th><th>verdict</th></tr>"
    parts.append(f'<div class="wide"><table>{head}{checks}</table></div>')
    parts += [MarkdownIt().render(remark) for remark in _remarks(folder, name)]
    kinds = ["" if c["kind"] == "text" else ' class="n"' for c in table["columns"]]
    titles = [html.escape(c["title"]) for c in table["columns"]]
    cells = "".join(f"<th{kind}>{title}</th>" for kind, title in zip(kinds, titles, strict=True))
    lines = "".join(
        "<tr>"
        + "".join(f"<td{k}>{html.escape(v)}</td>" for k, v in zip(kinds, row, strict=True))
        + "</tr>"
        for row in _rows(table)
    )
    parts.append(f'<div class="wide"><table><tr>{cells}</tr>{lines}</table></div>')
    return "".join(parts)


def _remarks(folder: Path, name: str) -> list[str]:
    """What was found out about a name, paragraph by paragraph, if someone wrote it down."""
    path = folder / f"{name}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def _rows(table: Findings) -> list[list[str]]:
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
    if kind == "float":
        return f"{value:.3g}"
    return f"{value:,}" if kind == "number" else str(value)


def _tally(checks: list[Check]) -> str:
    verdicts = [check["verdict"] for check in checks]
    counted = [(verdicts.count(verdict), verdict) for verdict in MARKS]
    return ", ".join(f"{count} {verdict}" for count, verdict in counted if count)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
