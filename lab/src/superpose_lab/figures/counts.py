"""Table 1: numbers of a superposed linear layer, counted on real models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from superpose import superpose
from superpose_lab.figures import Scale
from superpose_lab.figures.claims import exact
from superpose_lab.figures.style import COLOURS, caption, new
from superpose_lab.figures.table import Column, Row, Table

Formula = Callable[[int, int], int]

ROWS: dict[str, tuple[str, str, Formula, str, Formula]] = {
    "Standard": ("identity", "MN", lambda m, n: m * n, "MN", lambda m, n: m * n),
    "Rotational": ("rotation", "M(N + M)", lambda m, n: m * (n + m), "M²", lambda m, n: m * m),
    "Binary": ("binary", "M(N + 1)", lambda m, n: m * (n + 1), "M", lambda m, n: m),
    "Complex": ("complex", "2M(N + 0.5)", lambda m, n: 2 * m * n + m, "M", lambda m, n: m),
    "OnePower": ("onepower", "2M(N + 0.5)", lambda m, n: 2 * m * n + m, "1", lambda m, n: 1),
}
"""The paper's table, by its names: parameters, and those of one more model."""
OURS = {"Phase (ours)": "phase", "Hadamard (ours)": "hadamard"}
SIZES: dict[Scale, tuple[int, int]] = {"smoke": (16, 8), "quick": (256, 128), "paper": (784, 256)}


COLUMNS = (
    Column("method", "method"),
    Column("formula", "paper: parameters"),
    Column("paper", "that is", "number"),
    Column("counted", "counted", "number"),
    Column("formula_more", "paper: one more model"),
    Column("paper_more", "that is", "number"),
    Column("counted_more", "counted", "number"),
    Column("stored_more", "stored here", "number"),
)


def table(scale: Scale, data_dir: Path | None = None) -> Table:
    """Count layers of M inputs and N outputs."""
    m, n = SIZES[scale]
    rows: list[Row] = []
    claims = []
    for name, (family, formula, total, formula_more, more) in ROWS.items():
        row: Row = {"method": name, "formula": formula, "formula_more": formula_more}
        row |= {"paper": total(m, n), "paper_more": more(m, n), **_counted(family, m, n)}
        rows.append(row)
        same = (row["paper"], row["paper_more"]) == (row["counted"], row["counted_more"])
        theirs = f"{formula} = {row['paper']:,}; {formula_more}"
        theirs += f" = {row['paper_more']:,}" if formula_more != "1" else ""
        ours = f"{row['counted']:,}; {row['counted_more']:,}"
        claims.append(exact(f"{name}: parameters, and of one more model", same, ours, theirs))
    rows += [{"method": name, **_counted(family, m, n)} for name, family in OURS.items()]
    about = f"a linear layer of M = {m} inputs and N = {n} outputs, without bias"
    return Table(COLUMNS, rows, claims, about)


def _counted(family: str, m: int, n: int) -> dict[str, int]:
    """The numbers of a layer that holds three models, and those that the third one added."""
    layer = nn.Sequential(nn.Linear(m, n, bias=False))
    cost = superpose(layer, family, tasks=3, private="none").cost()
    before = superpose(layer, family, tasks=2, private="none").cost()
    if family == "identity":  # without contexts, another model needs its weights
        more = cost.separate - before.separate
        return {"counted": cost.plain, "counted_more": more, "stored_more": more}
    return {
        "counted": cost.paper_parameters,
        "counted_more": cost.paper_per_task,
        "stored_more": cost.stored - before.stored,
    }


def draw(table: Table) -> Any:
    """The numbers that one more model adds, on a logarithmic scale."""
    figure = new(6.4, 3.4)
    axes = figure.subplots()
    rows = table.rows[::-1]
    names = [row["method"] for row in rows]
    values = [row["counted_more"] for row in rows]
    families = {name: spec[0] for name, spec in ROWS.items()} | OURS
    colours = [COLOURS.get(families[name], COLOURS["standard"]) for name in names]
    axes.hlines(names, 0.5, values, color=colours, lw=2)
    axes.scatter(values, names, color=colours, s=42, zorder=3)
    for row, value, colour in zip(rows, values, colours, strict=True):
        formula, number = row.get("formula_more"), f"{value:,}"
        text = number if formula in (None, number) else f"{formula} = {number}"
        axes.annotate(
            text,
            (value, row["method"]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontweight="bold",
            fontsize=8.5,
        )
    axes.set_xscale("log")
    axes.set_xlim(0.5, max(values) * 40)
    axes.grid(False)
    axes.grid(True, axis="x")
    axes.tick_params(axis="y", length=0)
    axes.set_title("Numbers that one more model adds")
    axes.set_xlabel("numbers, contexts stored as the paper stores them")
    caption(
        figure,
        f"{table.heading} Counted on real models, whatever the seed. Here fixed contexts are "
        "derived from keys, so all but standard store 0 more.",
    )
    return figure
