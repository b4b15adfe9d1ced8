"""The demo: ten permuting tasks in one network, with and without superposition."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from superpose.errors import SuperposeError
from superpose.lab.data import load
from superpose.lab.experiments.jobs import Job, side_by_side
from superpose.lab.experiments.settings import Settings
from superpose.lab.figures.style import COLOURS, drawing_library
from superpose.learning import Display

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
"""The best that this library does, the paper's method, and the plain network; their settings."""


IMAGES = {
    "mnist": "the 28 × 28 digits of MNIST",
    "digits": "the 8 × 8 digits of scikit-learn",
}


def choose(data_dir: Path | None) -> tuple[str, str]:
    """MNIST where it can be had, else the digits of scikit-learn, which are far fewer, and why."""
    try:
        load("mnist", data_dir)
    except SuperposeError as error:
        return "digits", str(error).split(":", 1)[0].splitlines()[0]
    return "mnist", ""


def jobs(settings: Settings, out: Path, resume: bool) -> list[Job]:
    """One run for each method, into a folder of its own."""
    return [
        Job(replace(settings, **own), out / name, name, {"resume": resume})
        for name, own in METHODS.items()
    ]


def run(
    settings: Settings, out: Path, at_once: int, display: Display, resume: bool
) -> dict[str, dict[str, Any]]:
    """Learn the tasks with each method and draw the figure; results by method."""
    drawing_library()
    results = side_by_side(jobs(settings, out, resume), at_once, display)
    draw(out)
    return dict(zip(METHODS, results, strict=True))


def draw(out: Path) -> Path:
    """Draw the figure from the files of the runs alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    results = {name: json.loads((out / name / "result.json").read_text()) for name in METHODS}
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for name, result in results.items():
        measured, first = zip(*result["first"], strict=True)
        tasks = range(1, len(result["final"]) + 1)
        series = ((left, measured, first), (right, tasks, result["final"]))
        for axes, x, y in series:
            axes.plot(x, [100 * value for value in y], color=COLOURS[name], lw=2, marker="o", ms=3)
    steps, count = result["steps"], len(result["final"])
    left.set_title("The first task, while the others are learned", loc="left")
    left.set_xlabel("training steps")
    left.set_xlim(0, 1.22 * steps)
    left.set_xticks([steps * quarter // 4 for quarter in range(5)])
    right.set_title("Each task, after all were learned", loc="left")
    right.set_xlabel("task, in the order of learning")
    right.set_xlim(1 - 0.25 * count, count + 0.3)
    right.set_xticks(range(1, count + 1, max(1, count // 10)))
    _label(left, {name: 100 * each["first_task"] for name, each in results.items()}, -1)
    _label(right, {name: 100 * each["final"][0] for name, each in results.items()}, 0)
    lowest = min(min(each["final"]) for each in results.values())
    for axes in (left, right):
        axes.set_ylabel("test accuracy, %")
        axes.set_ylim(max(0, 100 * lowest - 8), 101)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    path = out / "demo.png"
    figure.savefig(path, dpi=150)
    return path


def _label(axes: Any, values: dict[str, float], end: int) -> None:
    """Name each line at one of its ends, names moved apart where lines meet."""
    lowest = -1e9
    for name, value in sorted(values.items(), key=lambda each: each[1]):
        lowest = max(value, lowest + 4)
        x = axes.lines[0].get_xdata()[end]
        side = {"ha": "left", "xytext": (6, 0)} if end else {"ha": "right", "xytext": (-6, 0)}
        axes.annotate(
            name, (x, lowest), color=COLOURS[name], va="center", textcoords="offset points", **side
        )
