"""Every figure and table: what it needs run, its numbers, its picture.

`items` says which runs a name needs, `runs` and `measured` find them, and `produce` makes the
missing ones. A
table function turns their results into the JSON of the name (`findings`), and a drawing function
turns that JSON, and nothing else, into the picture.
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
