"""One HTML page with all figures and tables; it needs no other file and no network."""

import base64
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from markdown_it import MarkdownIt

from superpose.lab.figures import Scale
from superpose.lab.figures.document import (
    LONG,
    MARKS,
    NOTES,
    REMARKS,
    VERDICTS,
    differing,
    load,
    remarks,
    rows,
    setting,
    state,
    summary,
    tally,
)
from superpose.lab.figures.findings import Findings

TEMPLATE = "report.html"
CHECKS = ("claim", "paper", "measured", "verdict")


def page(folder: Path, scale: Scale) -> str:
    """The page; figures are inside it, as SVG."""
    tables = load(folder, scale)
    overview = _table(
        ("name", "title", "in the paper", "status", "verdicts"),
        (
            (_link(name), t["title"], t["source"], state(t), tally(t["checks"]))
            for name, t in tables.items()
        ),
        raw=(0,),
    )
    parts = {
        "contents": "".join(f"<li>{_link(name)}</li>" for name in tables),
        "scale": html.escape(scale),
        "summary": "".join(f"<p>{html.escape(each)}</p>" for each in summary(tables)),
        "remark": f"<p>{html.escape(REMARKS[scale])}</p>" if REMARKS[scale] else "",
        "overview": overview,
        "differing": _differing(tables),
        "verdicts": "".join(f"<dt>{name}</dt><dd>{meaning}</dd>" for name, meaning in VERDICTS),
        "notes": "".join(f"<li>{MarkdownIt().renderInline(note)}</li>" for note in NOTES),
        "sections": "".join(_section(name, t, folder / scale) for name, t in tables.items()),
    }
    text = files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    for name, value in parts.items():
        text = text.replace(f"<!--{name}-->", value)
    return text


def _differing(tables: dict[str, Findings]) -> str:
    lines = [(_link(n), c["claim"], c["paper"], c["ours"]) for n, c in differing(tables)]
    head = '<h2 id="differing">Where the results differ from the paper</h2>'
    return head + _table(("name", *CHECKS[:3]), lines, raw=(0,)) if lines else ""


def _section(name: str, table: Findings, folder: Path) -> str:
    title = html.escape(table["title"])
    parts = [
        f'<section aria-labelledby="{name}"><h2 id="{name}">{name}: {title}</h2>',
        f"<p>{html.escape(table['source'])}.{html.escape(setting(table))}</p>",
        f'<p class="how">Status: {html.escape(state(table))}. Made by '
        f"<code>{html.escape(table['command'])}</code>.</p>",
    ]
    picture = folder / f"{name}.svg"
    if picture.exists():
        data = base64.b64encode(picture.read_bytes()).decode("ascii")
        parts.append(
            f'<button class="figure" aria-haspopup="dialog" aria-label="Enlarge: {title}">'
            f'<img alt="{title}" src="data:image/svg+xml;base64,{data}"></button>'
        )
    checks = [
        (c["claim"], c["paper"], c["ours"], f"{MARKS[c['verdict']]} {c['verdict']}")
        for c in table["checks"]
    ]
    parts.append(_table(CHECKS, checks) if checks else "")
    parts.append(MarkdownIt().enable("table").render(remarks(folder, name)))
    lines, columns = rows(table), table["columns"]
    numbers = [place for place, c in enumerate(columns) if c["kind"] != "text"]
    full = _table([c["title"] for c in columns], lines, numbers=numbers)
    if len(lines) > LONG:
        full = f"<details><summary>All {len(lines)} rows</summary>{full}</details>"
    return "".join([*parts, full, "</section>"])


def _table(
    head: Sequence[str],
    lines: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
    raw: Sequence[int] = (),
) -> str:
    """A table that can be sorted; `numbers` are on the right, `raw` columns are HTML already."""

    def cell(place: int, value: str) -> str:
        kind = ' class="n"' if place in numbers else ""
        if value[:1] in MARKS.values() and head[place] == "verdict":
            kind = f' class="{value.split()[1]}"'
        return f"<td{kind}>{value if place in raw else html.escape(value)}</td>"

    heads = "".join(
        f'<th scope="col"{_number(place in numbers)}><button>{html.escape(title)}</button></th>'
        for place, title in enumerate(head)
    )
    body = "".join(
        "<tr>" + "".join(cell(place, value) for place, value in enumerate(line)) + "</tr>"
        for line in lines
    )
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _number(yes: bool) -> str:
    return ' class="n"' if yes else ""


def _link(name: str) -> str:
    return f'<a href="#{name}">{name}</a>'
