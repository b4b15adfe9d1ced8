"""The page of all figures and tables, as Markdown: three classes of claims, then each figure."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from superpose_lab.figures.catalogue import BEYOND, FIGURES
from superpose_lab.figures.claims import Claim, Kind
from superpose_lab.figures.produce import Place, command
from superpose_lab.figures.table import Table
from superpose_lab.results import Results

LONGEST = 24  # rows; a longer table is in the results, not on the page
CLASSES: dict[Kind, tuple[str, str]] = {
    "number": (
        "Numbers of the paper",
        "The paper gives a number, or says that something does not change. Ours agrees if it is "
        "within one percentage point.",
    ),
    "ordering": (
        "Orderings",
        "The paper says, or shows in a curve, that one method is above another. Methods are "
        "compared on the seeds that both have. An ordering is undecided if the means differ by "
        "less than the standard deviation between seeds; with one seed, by less than 10 points.",
    ),
    "mathematics": (
        "Mathematics",
        "Counts, propositions and the construction of the tasks. They need no training.",
    ),
}
REMARKS = {
    "paper": "",
    "quick": "These runs are shorter than the paper's: they show which method is ahead, not by how "
    "much.",
    "smoke": "These runs take seconds: they test the commands, and their accuracies mean nothing.",
}
HEAD = {
    "number": "| claim | paper | measured | difference, points | seeds |",
    "ordering": "| claim | measured | seeds | |",
    "mathematics": "| claim | measured | |",
}


def page(place: Place, beside: Path) -> str:
    """The whole page; `beside` is the folder that it will be in, for its links."""
    results = Results(place.folder)
    tables = {name: figure.table(name, place.scale, results) for name, figure in FIGURES.items()}
    link = Path(os.path.relpath(place.folder, beside)).as_posix()
    parts = [
        "# Reproduction of the paper",
        "`superpose-lab reproduce` trains the networks of [*Superposition of many models into "
        "one*](https://arxiv.org/abs/1902.05522) again. This page compares the claims of the paper "
        "with what we measured, then shows every figure and table, and figures that go beyond the "
        "paper: other recipes, and tasks that are recognised.",
        REMARKS[place.scale],
        "## Claims of the paper",
        _counts(tables),
        "Accuracies are in percent: mean ± standard deviation over seeds.",
    ]
    for kind, (title, meaning) in CLASSES.items():
        parts += [f"### {title}", meaning, _claims(tables, kind)]
    parts += [
        "## Make it again",
        f"```console\nsuperpose-lab reproduce fig-methods --scale {place.scale}\n"
        f"superpose-lab reproduce all --scale {place.scale} --draw-only --page "
        f"{_page_of(beside)}\n```",
        "The first command trains the missing runs of one figure and draws it; a stopped run "
        "resumes. The second draws all figures from finished runs, trains nothing, and writes this "
        "page.",
        f"Each file `{place.folder.name}/EXPERIMENT.jsonl` has one line a run: configuration, "
        "measures, and the command that made it. `superpose-lab collect DIR` brings in runs that "
        "were made elsewhere. Remarks below, written by hand, are in "
        f"`{place.folder.name}/remarks/`.",
        "## Figures and tables",
        _list(tables),
    ]
    for name, table in tables.items():
        parts += [f"### {name}", *_section(name, table, place, link)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _page_of(beside: Path) -> str:
    return (Path(beside.name) / "reproduction.md").as_posix()


def _every(tables: Mapping[str, Table], kind: Kind) -> Iterator[tuple[str, Claim]]:
    for name, table in tables.items():
        yield from ((name, claim) for claim in table.claims if claim.kind == kind)


def _counts(tables: Mapping[str, Table]) -> str:
    lines = [
        "| class | claims | agree | differ | undecided | not run yet | seeds |",
        "|---" * 7 + "|",
    ]
    for kind, (title, _) in CLASSES.items():
        claims = [claim for _, claim in _every(tables, kind)]
        outcomes = [claim.outcome for claim in claims]
        counted = [outcomes.count(o) for o in ("agrees", "differs", "undecided", "not run yet")]
        seeds = sorted({claim.seeds for claim in claims if claim.seeds})
        spread = "none needed" if kind == "mathematics" else _seeds(claims, seeds)
        cells = " | ".join(map(str, (len(claims), *counted)))
        lines.append(f"| [{title}](#{title.lower().replace(' ', '-')}) | {cells} | {spread} |")
    return "\n".join(lines)


def _seeds(claims: Sequence[Claim], seeds: Sequence[int]) -> str:
    """The number of claims by their number of seeds."""
    return ", ".join(f"{sum(c.seeds == n for c in claims)} with {n}" for n in seeds)


def _claims(tables: Mapping[str, Table], kind: Kind) -> str:
    rows = [
        [f"[{name}](#{name}): {claim.text}", *_cells(claim)] for name, claim in _every(tables, kind)
    ]
    return _claim_table(kind, rows)


def _claim_table(kind: Kind, rows: Sequence[Sequence[str]]) -> str:
    lines = [HEAD[kind], "|---" * (HEAD[kind].count("|") - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) if rows else ""


def _cells(claim: Claim) -> list[str]:
    seeds = str(claim.seeds or "–")
    if claim.kind == "number":
        missing = claim.outcome == "not run yet"
        return [claim.theirs, claim.ours, claim.outcome if missing else claim.difference, seeds]
    outcome = f"**{claim.outcome}**" if claim.outcome == "differs" else claim.outcome
    return [claim.ours, seeds, outcome] if claim.kind == "ordering" else [_both(claim), outcome]


def _both(claim: Claim) -> str:
    return f"{claim.ours}; the paper: {claim.theirs}" if claim.theirs else claim.ours


def _list(tables: Mapping[str, Table]) -> str:
    lines = ["| name | in the paper | title | status |", "|---|---|---|---|"]
    for name, table in tables.items():
        figure = FIGURES[name]
        lines.append(f"| [{name}](#{name}) | {figure.source} | {figure.title} | {status(table)} |")
    return "\n".join(lines)


def status(table: Table) -> str:
    """Complete, or the number of missing runs."""
    count = len(table.missing)
    if not count:
        return "complete"
    if not any(row.get("seeds") for row in table.rows):
        return "not run yet"
    return f"incomplete: {count} {'run is' if count == 1 else 'runs are'} missing"


def _section(name: str, table: Table, place: Place, link: str) -> Iterator[str]:
    figure = FIGURES[name]
    where = "not in the paper" if figure.source == BEYOND else figure.source
    about = f" {table.about[0].upper()}{table.about[1:]}." if table.about else ""
    yield f"**{figure.title}** ({where}).{about}"
    yield f"Status: {status(table)}. Made by `{command(name, place.scale)}`."
    if place.picture(name).exists():
        yield f"![{figure.title}]({link}/figures/{name}.svg)"
    remark = place.folder / "remarks" / f"{name}.md"
    if remark.exists():
        yield remark.read_text(encoding="utf-8").strip()
    if table.columns and len(table.rows) <= LONGEST:
        yield table.markdown()
