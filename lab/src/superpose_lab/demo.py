"""The demo: ten permuting tasks in one network, with and without superposition."""

import json
from pathlib import Path
from typing import Any

from superpose import SuperposeError
from superpose_lab.data import load
from superpose_lab.figures.style import COLOURS, label_ends, new, style

METHODS: dict[str, dict[str, Any]] = {  # the slowest first, so that no core waits at the end
    "ours": {
        "method": "hadamard+projection",
        "private": "per-task",
        "centre": "task",
        "lr": 6e-4,
        "schedule": "cosine",
    },
    "binary": {"method": "binary"},
    "standard": {"method": "standard"},
}
"""Our recipe, the paper's method, and the plain network; their settings."""
IMAGES = {"mnist": "the 28 × 28 digits of MNIST", "digits": "the 8 × 8 digits of scikit-learn"}


def choose(data_dir: Path | None) -> tuple[str, str]:
    """MNIST if it can be loaded, else the smaller digits of scikit-learn, and the reason."""
    try:
        load("mnist", data_dir)
    except SuperposeError as error:
        return "digits", str(error).split(":", 1)[0].splitlines()[0]
    return "mnist", ""


def draw(out: Path) -> Path:
    """Draw the figure from the files of the runs."""
    results = {name: json.loads((out / name / "result.json").read_text()) for name in METHODS}
    path = out / "demo.png"
    with style():
        figure = new(10, 4.2)
        left, right = figure.subplots(1, 2)
        ends: dict[Any, list[tuple[str, float, float, str]]] = {left: [], right: []}
        for name, result in results.items():
            steps, first = zip(*result["first"], strict=True)
            tasks = range(1, len(result["final"]) + 1)
            for axes, x, y in ((left, steps, first), (right, tasks, result["final"])):
                percent = [100 * value for value in y]
                axes.plot(x, percent, color=COLOURS[name], lw=2, marker="o", ms=3)
                ends[axes].append((name, x[-1], percent[-1], COLOURS[name]))
        left.set(title="The first task, while the others are learned", xlabel="training steps")
        left.set_xlim(0, 1.22 * result["steps"])
        right.set(title="Each task, after all were learned", xlabel="task, in order of learning")
        right.set_xlim(0.8, 1.22 * len(result["final"]))
        lowest = 100 * min(min(each["final"]) for each in results.values())
        for axes, labels in ends.items():
            axes.set(ylabel="test accuracy, %", ylim=(max(0, lowest - 8), 101))
            label_ends(axes, labels)
        figure.savefig(path, dpi=150)
    return path
