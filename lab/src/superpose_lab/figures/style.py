"""The look of all figures: direct labels, shaded deviation, colours for the colour-blind."""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from superpose_lab.files import write

COLOURS = {  # Okabe and Ito's palette, its yellow left out because it is lost on white
    "standard": "#D55E00",
    "binary": "#0072B2",
    "complex": "#009E73",
    "onepower": "#CC79A7",
    "rotation": "#000000",
    "hadamard": "#E69F00",
    "phase": "#56B4E9",
    "permutation": "#7F7F7F",
    "block-rotation": "#8C6D31",
    "multihead": "#E69F00",
    "binary+projection": "#009E73",
    "hadamard+projection": "#5B2A86",
    "ours": "#5B2A86",
    "fast": "#56B4E9",
    "fast-localmix": "#CC79A7",
    "ewc": "#7F7F7F",
    "si": "#4D4D4D",
}
GREY = "#666666"
DECIMALS = re.compile(r"(\d\.\d\d)\d+")
RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "superpose",  # names inside the file do not change from one drawing to the next
    "figure.constrained_layout.use": True,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in here."""
    import matplotlib

    with matplotlib.rc_context(RC):
        yield


def new(width: float, height: float) -> Any:
    """A figure that needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path) -> None:
    """Write an SVG, coordinates to a hundredth of a point; the same figure gives the same bytes."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    text = DECIMALS.sub(r"\1", drawn.getvalue())
    write(path, "".join(f"{line.rstrip()}\n" for line in text.splitlines()).encode())


def caption(figure: Any, text: str) -> None:
    """The small print below: scale, settings, seeds."""
    width = int(figure.get_figwidth() * 15.5)
    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, width)]
    figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=7.5, color=GREY)


def line(axes: Any, curve: dict[str, Any], colour: str, unit: int) -> None:
    """Mean as a line, deviation over seeds as a shade, in percent over units of steps."""
    steps = [step / unit for step in curve["steps"]]
    mean = [100 * value for value in curve["mean"]]
    width = 1.6 if len(steps) <= 200 else 0.9
    axes.plot(steps, mean, color=colour, lw=width, solid_capstyle="round")
    if curve["deviation"] is not None:
        spread = [100 * value for value in curve["deviation"]]
        low = [m - s for m, s in zip(mean, spread, strict=True)]
        high = [m + s for m, s in zip(mean, spread, strict=True)]
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, lw=0)


def label_ends(axes: Any, ends: Sequence[tuple[str, float, float, str]], size: float = 8.5) -> None:
    """Name lines at their right ends: (text, x, y, colour) each, moved apart where they meet.

    Where they meet depends on the layout, so this comes last.
    """
    figure = axes.figure
    figure.draw_without_rendering()
    pixels = [float(axes.transData.transform((x, y))[1]) for _, x, y, _ in ends]
    gap = size * 1.3 * figure.dpi / 72
    low, high = axes.bbox.y0 + gap / 2, axes.bbox.y1 - gap / 4
    for (text, x, y, colour), wanted, moved in zip(
        ends, pixels, spaced(pixels, gap, low, high), strict=True
    ):
        shift = (moved - wanted) * 72 / figure.dpi
        label = axes.annotate(
            text,
            (x, y),
            xytext=(9, shift),
            textcoords="offset points",
            color=colour,
            fontsize=size,
            fontweight="bold",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "lw": 0.6,
                "shrinkA": 0,
                "shrinkB": 1,
                "relpos": (0, 0.5),
            },
        )
        label.set_in_layout(False)


def spaced(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move places at least `gap` apart, as little as possible, within the bounds if they fit.

    >>> spaced([0, 10, 11], 4, -100, 100)
    [0.0, 8.5, 12.5]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[list[float]] = []  # of what is left of each place when the gaps are taken out
    for rank, i in enumerate(order):
        groups.append([wanted[i] - rank * gap])
        while len(groups) > 1 and _mean(groups[-2]) >= _mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    flat = [_mean(group) for group in groups for _ in group]
    top = high - (len(wanted) - 1) * gap
    bounded = [max(min(value, top), low) for value in flat]
    places = [0.0] * len(wanted)
    for rank, i in enumerate(order):
        places[i] = bounded[rank] + rank * gap
    return places


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
