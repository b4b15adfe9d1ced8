"""Draw how cost grows with tasks, width and rows, from results/speed/bench.json.

python benchmarks/speed.py --growth --out results/speed/bench.json
python benchmarks/growth.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

from superpose_lab.figures.style import save

FOLDER = Path(__file__).parents[1] / "results" / "speed"
COLOURS = {"binary": "#0072B2", "phase": "#009E73", "hadamard": "#D55E00"}
TITLES = {
    "tasks": "forward, 128 rows of K tasks",
    "width": "training step, one task",
    "rows": "forward, rows of 64 tasks",
}


def main() -> None:
    plt.switch_backend("Agg")
    plt.rcParams["svg.hashsalt"] = "superpose"
    points = json.loads((FOLDER / "bench.json").read_text())["growth"]
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
    for axis, (curve, title) in zip(axes, TITLES.items(), strict=True):
        for family, colour in COLOURS.items():
            own = [p for p in points if p["curve"] == curve and p["family"] == family]
            if not own:
                continue
            at, ratio = [p["at"] for p in own], [p["ratio"] for p in own]
            axis.plot(at, ratio, color=colour, marker="o", markersize=3)
            low, high = [p["low"] for p in own], [p["high"] for p in own]
            axis.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.annotate(
                family, (at[0], ratio[0]), xytext=(7, 3), textcoords="offset points",
                color=colour, fontsize=8,
            )  # fmt: skip
        axis.axhline(1, color="0.6", linestyle=":", linewidth=1)
        axis.set(xscale="log", xlabel=curve, title=title)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(bottom=0.8)
    axes[0].set_ylabel("time beside the plain MLP")
    figure.supxlabel(
        "An MLP of two hidden layers, left and right of 1024 units. Lines: median of the rounds. "
        "Shades: the middle 90 % of them.",
        x=0.012, ha="left", fontsize=8, color="0.4",
    )  # fmt: skip
    save(figure, FOLDER.parent / "figures" / "growth.svg")


if __name__ == "__main__":
    main()
