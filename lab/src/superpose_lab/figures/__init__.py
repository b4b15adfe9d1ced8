"""Every figure and table of the paper, and of what goes beyond it.

`catalogue` lists them. A figure is one specification: the runs that it needs at each scale, the
columns of its table, its claims, its axes. `produce` trains missing runs and draws, `page` writes
all figures as one page of Markdown.
"""

from typing import Literal

FigureName = Literal[
    "table1",
    "fig-size",
    "fig-methods",
    "table-average",
    "fig-rotating-samples",
    "fig-rotating-fashion",
    "fig-rotating-close",
    "fig-rotating-context",
    "fig-icifar-samples",
    "fig-icifar",
    "fig-geometry",
    "fig-rotating-mnist",
    "fig-permuting-2000",
    "propositions",
    "recipe",
    "icifar-recipe",
    "icifar-ours",
    "ours",
    "own-numbers",
    "zenke",
    "released",
    "rates-permuting",
    "rates-rotating",
    "icifar-scratch",
    "recognise-permuted-10",
    "recognise-permuted-50",
    "recognise-permuted-250",
    "recognise-rotated",
    "recognise-evidence",
    "recognise-doubt",
    "recognise-returning",
    "recognise-stream",
    "recognise-rotating-fashion",
    "recognise-cifar100",
]
Scale = Literal["smoke", "quick", "paper"]
