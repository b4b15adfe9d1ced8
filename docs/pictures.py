"""Draw the pictures of concepts.md from the library itself.

python docs/pictures.py    # writes docs/pictures/*.svg
"""

import sys
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import superpose as sp

FOLDER = Path(__file__).parent / "pictures"
GREY, BLUE, ORANGE, GREEN = "#737b85", "#3b82c4", "#d9731a", "#2f9e5a"
STYLE = {  # no background, and colours that can be read on white and on black
    "axes.edgecolor": GREY,
    "axes.facecolor": "none",
    "axes.labelcolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": GREY,
    "figure.facecolor": "none",
    "font.size": 11,
    "legend.labelcolor": GREY,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # letters stay letters
    "svg.hashsalt": "superpose",  # the same file each time
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}
SIGNED = LinearSegmentedColormap.from_list("signed", [ORANGE, "#ffffff00", BLUE])


def context(family: str, task: int, dim: int) -> sp.contexts.Context:
    return sp.contexts.family(family).context(sp.contexts.Key(seed=0, layer="", task=task), dim)


def binding() -> Figure:
    """An image, bound by one context, unbound by its own and by another."""
    image = torch.tensor(load_digits().images[10] / 16, dtype=torch.float32).flatten()
    a, b = (context("hadamard", task, 64) for task in (0, 1))
    bound = a.bind(image)
    shown = {
        "$x$": image,
        "$C(a)\\,x$": bound,
        "$C(a)^{-1}C(a)\\,x$": a.inverse().bind(bound),
        "$C(b)^{-1}C(a)\\,x$": b.inverse().bind(bound),
    }
    below = ("an input", "bound by a", "unbound by a: itself", "by b: noise")
    figure, axes = plt.subplots(1, 4, figsize=(6.6, 2.2))
    for axis, (title, values), text in zip(axes, shown.items(), below, strict=True):
        grid = values.view(8, 8).flip(0)
        axis.pcolormesh(grid, cmap=SIGNED, vmin=-1, vmax=1, edgecolors=GREY, linewidth=0.15)
        axis.set(title=title, xlabel=text, xticks=[], yticks=[], aspect="equal")
        axis.spines[:].set_visible(False)
    return figure


def cancelling(inputs: int = 1024, others: int = 12) -> Figure:
    """The sum of a layer's products, term by term: of the task that was asked, and of others."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(inputs, generator=generator)
    own = context("binary", 0, inputs)
    weight = own.inverse().bind(x)  # stored for task 0: the weights that answer x most
    some = slice(7, None, 8)  # every eighth sum is enough to draw
    count = torch.arange(inputs)[some] + 1
    figure, axis = plt.subplots(figsize=(6.6, 3))
    for task in range(1, others + 1):
        terms = weight * context("binary", task, inputs).bind(x)
        axis.plot(count, terms.cumsum(0)[some], color=ORANGE, linewidth=0.8, alpha=0.7)
    axis.plot([], [], color=ORANGE, label=f"{others} other tasks: +, −, +, … cancel")
    terms = weight * own.bind(x)
    axis.plot(count, terms.cumsum(0)[some], color=BLUE, linewidth=2.5, label="its own task")
    axis.plot(count, 2 * count**0.5, color=GREY, linestyle="--", label="±2√n")
    axis.plot(count, -2 * count**0.5, color=GREY, linestyle="--")
    axis.set(xlabel="inputs added up, n", ylabel="sum of n products", xlim=(0, inputs))
    axis.legend(frameon=False)
    return figure


def capacity(inputs: int = 128) -> Figure:
    """The noise of a layer against the models stored in it: predicted, and measured by packing."""
    figure, axis = plt.subplots(figsize=(6.6, 3.4))
    counts = range(1, 33)
    for rank, colour in ((8, BLUE), (16, GREEN), (32, ORANGE)):
        nets, data = {}, {}
        generator = torch.Generator().manual_seed(rank)
        for task in map(str, counts):
            nets[task] = nn.Sequential(nn.Linear(inputs, 32, bias=False))
            nn.init.normal_(nets[task][0].weight, generator=generator)
            directions = torch.linalg.qr(torch.randn(inputs, rank, generator=generator)).Q
            data[task] = torch.randn(400, rank, generator=generator) @ directions.mT
        planned = [sp.plan(nets["1"], "hadamard", tasks=tasks, rank=rank).noise for tasks in counts]
        axis.plot(counts, planned, color=colour, label=f"{rank} of {inputs} directions filled")
        for tasks in (2, 4, 8, 12, 16, 24, 32):
            some = list(nets)[:tasks]
            stored = {name: nets[name] for name in some}
            seen = {name: data[name] for name in some}
            packed = sp.pack(stored, "hadamard", calibration=seen)
            measured = sp.crosstalk(packed, stored, seen).layers[0].measured
            axis.plot(tasks, measured, "o", color=colour, markersize=5)
        axis.axvline(inputs / rank, color=colour, ymax=0.4, linestyle=":", linewidth=1)
    axis.plot([], [], "o", color=GREY, label="measured")
    axis.set(xlabel="models stored in one layer", ylabel="share of noise", xlim=(0, 33))
    axis.set_ylim(-0.02, 1)
    axis.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return figure


PICTURES = {"binding": binding, "cancelling": cancelling, "capacity": capacity}


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, draw in PICTURES.items():
            figure = draw()
            figure.tight_layout()
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
