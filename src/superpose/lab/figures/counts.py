"""Table 1: numbers of a superposed linear layer, counted on real models."""

from collections.abc import Callable
from typing import Any

from torch import nn

from superpose.lab.figures.findings import DIFFERS, REPRODUCED, Findings, check, column
from superpose.lab.figures.style import COLOURS, caption, new
from superpose.model import superpose

Formula = Callable[[int, int], int]

ROWS: dict[str, tuple[str, str, Formula, str, Formula]] = {
    "Standard": ("identity", "MN", lambda m, n: m * n, "MN", lambda m, n: m * n),
    "Rotational": ("rotation", "M(N + M)", lambda m, n: m * (n + m), "M²", lambda m, n: m * m),
    "Binary": ("binary", "M(N + 1)", lambda m, n: m * (n + 1), "M", lambda m, n: m),
    "Complex": ("complex", "2M(N + 0.5)", lambda m, n: 2 * m * n + m, "M", lambda m, n: m),
    "OnePower": ("onepower", "2M(N + 0.5)", lambda m, n: 2 * m * n + m, "1", lambda m, n: 1),
}
"""What the paper's table says, by its own names: parameters, and those of one more model."""
OURS = {"Phase (ours)": "phase", "Hadamard (ours)": "hadamard"}
SIZES = {"smoke": (16, 8), "quick": (256, 128), "paper": (784, 256)}


def table(scale: str) -> Findings:
    """Count layers of M inputs and N outputs."""
    m, n = SIZES[scale]
    rows: list[dict[str, Any]] = []
    for name, (family, formula, total, formula_more, more) in ROWS.items():
        counted = _counted(family, m, n)
        rows.append(
            {
                "method": name,
                "formula": formula,
                "paper": total(m, n),
                "counted": counted["parameters"],
                "formula_more": formula_more,
                "paper_more": more(m, n),
                "counted_more": counted["more"],
                "stored_more": counted["stored_more"],
            }
        )
    checks = [
        check(
            f"{row['method']}: parameters, and of one more model",
            f"{row['formula']} = {row['paper']:,}; {row['formula_more']}"
            + (f" = {row['paper_more']:,}" if row["formula_more"] != "1" else ""),
            f"{row['counted']:,}; {row['counted_more']:,}",
            REPRODUCED
            if (row["paper"], row["paper_more"]) == (row["counted"], row["counted_more"])
            else DIFFERS,
        )
        for row in rows
    ]
    for name, family in OURS.items():
        counted = _counted(family, m, n)
        nothing = dict.fromkeys(("formula", "paper", "formula_more", "paper_more"))
        rows.append(
            {
                "method": name,
                **nothing,
                "counted": counted["parameters"],
                "counted_more": counted["more"],
                "stored_more": counted["stored_more"],
            }
        )
    columns = [
        column("method", "method"),
        column("formula", "paper: parameters"),
        column("paper", f"at M = {m}, N = {n}", "number"),
        column("counted", "counted", "number"),
        column("formula_more", "paper: one more model"),
        column("paper_more", "that is", "number"),
        column("counted_more", "counted", "number"),
        column("stored_more", "stored here", "number"),
    ]
    about = f"a linear layer of M = {m} inputs and N = {n} outputs, without bias"
    return {"about": about, "columns": columns, "rows": rows, "checks": checks}


def _counted(family: str, m: int, n: int) -> dict[str, int]:
    """A layer that holds three models: what it has, and what the third one added."""
    layer = nn.Sequential(nn.Linear(m, n, bias=False))
    cost = superpose(layer, family, tasks=3, private="none").cost()
    before = superpose(layer, family, tasks=2, private="none").cost()
    if family == "identity":  # nothing tells models apart, so another one needs weights of its own
        more = cost.separate - before.separate
        return {"parameters": cost.plain, "more": more, "stored_more": more}
    return {
        "parameters": cost.paper_parameters,
        "more": cost.paper_per_task,
        "stored_more": cost.stored - before.stored,
    }


def draw(found: Findings) -> Any:
    """What one more model adds, on a scale by factors of ten."""
    figure = new(6.4, 3.4)
    axes = figure.subplots()
    rows = found["rows"][::-1]
    names = [row["method"] for row in rows]
    values = [row["counted_more"] for row in rows]
    families = {name: spec[0] for name, spec in ROWS.items()} | OURS
    colours = [COLOURS.get(families[name], COLOURS["standard"]) for name in names]
    axes.hlines(names, 0.5, values, color=colours, lw=2)
    axes.scatter(values, names, color=colours, s=42, zorder=3)
    for row, value, colour in zip(rows, values, colours, strict=True):
        formula, number = row["formula_more"], f"{value:,}"
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
        f"Table 1. Scale {found['scale']}: counted on {found['about']}, whatever the seed. Here "
        "fixed contexts are derived from keys, so all but standard store 0 more.",
    )
    return figure
