"""Accuracy against bytes, by number of tasks: superposition beside LoRA and other rivals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from superpose_lab.collect import FINE_TUNES
from superpose_lab.figures import style
from superpose_lab.results import Line, Results

INDEPENDENT = ("separate", "lora")  # later tasks do not change earlier ones
TITLES = {
    "mlp": "MLP of 256 units, blocks of MNIST",
    "lite0": "EfficientNet-lite0, ten classes of CIFAR-100",
    "clinc150": "MiniLM-L6, intents of a domain of CLINC150",
    "minilm": "MiniLM-L6, four topics of quotations",
    "minilm-reviews": "MiniLM-L6, film reviews, then topics of quotations",
    "resnet16": "ResNet-18 of width 16, CIFAR-10, then ten classes of CIFAR-100",
    "resnet32": "ResNet-18 of width 32, CIFAR-10, then ten classes of CIFAR-100",
}
COLOURS = {
    "separate": "#666666",
    "trunk": "#D55E00",
    "lora": "#0072B2",
    "superposed": "#5B2A86",
    "scrambled": "#009E73",
}
EIGHT = ", 8 bits"
OURS = ("superposed", "scrambled")
BREAKS = re.compile(r" (?=without)|(?<=,) (?=layers|centred)|(?<=superposed,) |(?<=base,) ")
ON_THE_PLANE = (*OURS, "lora")  # separate networks are a line, one trunk is far below
DRAWN = ("mlp", "lite0", "clinc150", "minilm")  # the others are few runs: the table has them
FAR = 30.0  # points below the best that are not drawn


@dataclass(frozen=True)
class Run:
    """One seed of a method: the accuracy of every task, and bytes."""

    problem: str
    method: str
    label: str
    words: str
    seed: int
    learned: list[float]
    end: list[float]
    eight_bits: list[float] | None  # at the end, with the weights rounded
    bytes: dict[str, int]
    eight_bits_total: int | None

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self.end)

    def first(self, tasks: int) -> Run:
        """The run with fewer tasks; of a method whose tasks do not influence each other."""
        each, shared = self.bytes["per_task"], self.bytes["shared"]
        saved = (self.bytes["total"] - (self.eight_bits_total or 0)) * tasks // self.tasks
        total = shared + tasks * each
        return replace(
            self,
            learned=self.learned[:tasks],
            end=self.end[:tasks],
            eight_bits=None if self.eight_bits is None else self.eight_bits[:tasks],
            bytes=self.bytes | {"total": total},
            eight_bits_total=None if self.eight_bits_total is None else total - saved,
        )


@dataclass(frozen=True)
class Point:
    """All seeds of a method with a number of tasks: accuracies in percent, and bytes in all."""

    problem: str
    method: str
    label: str
    words: str
    tasks: int
    learned: list[float]
    end: list[float]
    total: int
    network: int

    @property
    def mean(self) -> float:
        """Accuracy at the end, of all tasks and seeds."""
        return fmean(self.end)


def read(results: Results) -> list[Run]:
    """All runs of fine-tunes."""
    return [_run(line) for line in results.lines(FINE_TUNES)]


def _run(line: Line) -> Run:
    about, result, storage = line["config"]["about"], line["result"], line["storage"]
    rounded = storage.get("eight_bits", {})
    problem, _, label = line["name"].split("/")
    return Run(
        problem=problem,
        method=about["method"],
        label=label,
        words=words(about),
        seed=line["seed"],
        learned=[dict(row)[task] for task, row in enumerate(result["matrix"])],
        end=result["final"],
        eight_bits=rounded.get("final"),
        bytes=storage["bytes"],
        eight_bits_total=rounded.get("bytes"),
    )


def words(about: dict[str, Any]) -> str:
    """A method in words.

    >>> words({"method": "lora", "rank": 4, "options": "{}"})
    'LoRA, rank 4'
    """
    given = about | json.loads(about["options"])
    names = {
        "separate": "a network for each task",
        "trunk": "one network, a head for each task",
        "lora": "LoRA",
        "superposed": "base + superposed",
        "scrambled": "superposed without a base",
    }
    parts = [names[given["method"]]]
    parts += [f"rank {given['rank']}"] if given["rank"] else []
    if given["method"] in OURS:
        strength = f" of strength {given['strength']}" if "strength" in given else ""
        rows = f" from {given['samples']} rows" if "samples" in given else ""
        parts += [f"projection{strength}{rows}"] if given["projection"] else []
        parts += [f"centred by {given['centre']}"] if given["centre"] else []
        parts += [given["family"]] if given["family"] != "hadamard" else []
    parts += [f"layers < {given['min_inputs']} private"] if given.get("min_inputs") else []
    return ", ".join(parts)


def points(runs: Sequence[Run]) -> list[Point]:
    """Gather runs over seeds; independent methods also with the smaller numbers of tasks."""
    asked = {
        net: {run.tasks for run in runs if run.problem == net} for net in {r.problem for r in runs}
    }
    grouped: dict[tuple[str, str, str, int], dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: run.tasks):
        more = [n for n in asked[run.problem] if n < run.tasks] if run.method in INDEPENDENT else []
        for tasks in (*more, run.tasks):
            seeds = grouped.setdefault((run.problem, run.method, run.label, tasks), {})
            seeds[run.seed] = run.first(tasks) if tasks < run.tasks else run
    gathered = []
    for (net, method, label, tasks), by_seed in grouped.items():
        of_seeds = list(by_seed.values())
        learned = [100 * fmean(run.learned) for run in of_seeds]
        whole, phrase = of_seeds[0].bytes, of_seeds[0].words
        end = [100 * fmean(run.end) for run in of_seeds]
        gathered.append(
            Point(net, method, label, phrase, tasks, learned, end, whole["total"], whole["network"])
        )
        rounded = [100 * fmean(run.eight_bits) for run in of_seeds if run.eight_bits]
        if rounded and of_seeds[0].eight_bits_total is not None:
            total = of_seeds[0].eight_bits_total
            names = (f"{label}{EIGHT}", f"{phrase}{EIGHT}")
            gathered.append(
                Point(net, method, *names, tasks, learned, rounded, total, whole["network"])
            )
    return sorted(gathered, key=lambda point: (point.problem, point.tasks, point.total))


def rival(point: Point, among: Iterable[Point]) -> Point | None:
    """The LoRA of the same bytes, or of the next rank above, with as many bits a number."""
    able = [
        other
        for other in among
        if (other.problem, other.tasks, other.method) == (point.problem, point.tasks, "lora")
        and other.label.endswith(EIGHT) == point.label.endswith(EIGHT)
        and other.total >= point.total
    ]
    return min(able, key=lambda other: other.total, default=None)


def table(gathered: Sequence[Point]) -> str:
    """All points, in markdown."""
    rounded = {(p.problem, p.tasks, p.label): p for p in gathered if p.label.endswith(EIGHT)}
    lines = []
    for net in dict.fromkeys(point.problem for point in gathered):
        lines += [
            f"### {TITLES.get(net, net)}",
            "",
            "| tasks | method | when learned | at the end | bytes, in networks "
            "| LoRA of these bytes or more | in 8 bits: at the end, networks | seeds |",
            "|---" * 8 + "|",
        ]
        for point in (
            one for one in gathered if one.problem == net and not one.label.endswith(EIGHT)
        ):
            beside = rival(point, gathered) if point.method in OURS else None
            other = f"{beside.words.removeprefix('LoRA, ')}: {_mean(beside.end)}" if beside else ""
            small = rounded.get((point.problem, point.tasks, point.label + EIGHT))
            eight = f"{_mean(small.end)}, {small.total / small.network:.2f}" if small else ""
            lines.append(
                f"| {point.tasks} | {point.words} | {_mean(point.learned)} | {_mean(point.end)} "
                f"| {point.total / point.network:.2f} | {other} | {eight} | {len(point.end)} |"
            )
        lines.append("")
    return "\n".join(lines)


def _mean(values: list[float]) -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}"


def draw(results: Path, fewest: int = 8) -> None:
    """Draw the picture of the problems with so many tasks or more."""
    gathered = points(read(Results(results)))
    whole = [point for point in gathered if not point.label.endswith(EIGHT)]
    panels = [
        (net, tasks)
        for net in DRAWN
        for tasks in sorted({p.tasks for p in whole if p.problem == net and p.tasks >= fewest})
        if len({p.method for p in whole if (p.problem, p.tasks) == (net, tasks)}) > 1
    ]
    rows = (len(panels) + 1) // 2
    with style.style():
        figure = style.new(10.4, 3.6 * rows + 0.6)
        grid = figure.subplots(rows, 2, squeeze=False).flatten()
        for axes, (net, tasks) in zip(grid, panels, strict=False):
            _panel(axes, [p for p in whole if (p.problem, p.tasks) == (net, tasks)])
            axes.set_title(f"{TITLES[net]}, {tasks} tasks")
        for axes in grid[len(panels) :]:
            axes.remove()
        style.caption(figure, CAPTION)
        style.save(figure, results / "figures" / "fine-tunes.svg")


def _panel(axes: Any, gathered: Sequence[Point]) -> None:
    """Accuracy against bytes; LoRA of growing rank is a line, and separate networks a bound."""
    axes.set(xlabel="bytes of all tasks, in networks", ylabel="accuracy at the end, %")
    best = max(point.mean for point in gathered)
    gathered = [
        point for point in gathered if point.mean > best - FAR and _is_best(point, gathered)
    ]
    spread = [point.total / point.network for point in gathered if point.method in ON_THE_PLANE]
    middle = (min(spread) + max(spread)) / 2
    ours = [point.mean for point in gathered if point.method in OURS]
    for point in gathered:
        colour, at = COLOURS[point.method], (point.total / point.network, point.mean)
        if point.method == "separate":
            axes.axhline(point.mean, color=colour, linestyle="--", linewidth=1)
            axes.annotate(
                point.words, (0.01, point.mean), (0, 3), xycoords=axes.get_yaxis_transform(),
                textcoords="offset points", fontsize=7, color=colour,
            )  # fmt: skip
        elif point.method in OURS:
            axes.plot(*at, color=colour, marker="o", markersize=5)
            lines = BREAKS.sub("\n", point.words)
            side, right = ("right", -6) if at[0] > middle else ("left", 6)
            edge, up = ("bottom", 2) if point.mean == max(ours) > min(ours) else ("top", -2)
            _label(axes, lines, at, (right, up), colour, ha=side, va=edge)
    for private, look in ((False, "-"), (True, ":")):
        kind = [
            p for p in gathered if p.method == "lora" and p.words.endswith("private") is private
        ]
        line = [(point.total / point.network, point.mean) for point in kind]
        places, means = [place for place, _ in line], [mean for _, mean in line]
        axes.plot(places, means, look, color=COLOURS["lora"], marker="s", markersize=4)
        for at, point in zip(line, kind, strict=True):
            rank = point.words.split(", ")[1].removeprefix("rank ")
            name = point.words if point is kind[0] else rank
            _label(axes, name, at, (5, -3), COLOURS["lora"], ha="left", va="top")
    axes.margins(x=0.12, y=0.25)


def _is_best(point: Point, among: Sequence[Point]) -> bool:
    """True if no other of ours keeps more in the same bytes."""
    alike = (p for p in among if p.method == point.method and p.total == point.total)
    return point.method not in OURS or point.mean == max(p.mean for p in alike)


def _label(
    axes: Any, text: str, at: tuple[float, float], beside: tuple[int, int], colour: str, **how: str
) -> None:
    axes.annotate(
        text, at, beside, textcoords="offset points", fontsize=7, color=colour, linespacing=1.1,
        **how,
    )  # fmt: skip


CAPTION = (
    "Tasks are learned one after the other from a pretrained network; accuracy after the last, "
    "mean of all tasks, against the bytes of everything stored: network, superposed weight, "
    "adapters, heads, norms, means. Of superposed ones with the same bytes the best is shown. "
    "Methods that end 30 points below the best are left out: one network with a head for each "
    "task, and pretrained networks superposed without a base."
)
