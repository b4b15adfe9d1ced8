"""Accuracy against tasks at equal bytes: superposition beside LoRA and other rivals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from superpose.lab.figures import style
from superpose.learning.run_directory import write

INDEPENDENT = ("separate", "lora")  # nothing that is learned later changes a task
TITLES = {
    "mlp": "MLP of 256 units, blocks of MNIST",
    "lite0": "EfficientNet-lite0, ten classes of CIFAR-100",
    "minilm": "MiniLM-L6, four topics of quotations",
}
COLOURS = {"separate": "#666666", "trunk": "#D55E00", "scrambled": "#CC79A7"}
EIGHT = ", 8 bits"
PALETTE = ("#0072B2", "#009E73", "#5B2A86", "#E69F00", "#56B4E9", "#8C6D31")


@dataclass(frozen=True)
class Run:
    """One seed of a method: the accuracy of every task, and bytes."""

    net: str
    method: str
    label: str
    seed: int
    learned: list[float]
    end: list[float]
    eight_bits: list[float] | None  # at the end, with the weights rounded
    bytes: dict[str, int]
    eight_bits_total: int | None

    @property
    def tasks(self) -> int:
        """How many were learned."""
        return len(self.end)

    def first(self, tasks: int) -> Run:
        """The run as it would have been with fewer tasks; of an independent method."""
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

    net: str
    method: str
    label: str
    tasks: int
    learned: list[float]
    end: list[float]
    total: int
    network: int

    @property
    def mean(self) -> float:
        """Accuracy at the end, of all tasks and seeds."""
        return fmean(self.end)


def read(results: Path) -> list[Run]:
    """All finished runs below a folder."""
    return [_run(path.parent) for path in sorted(results.glob("*/*-tasks/*/seed-*/storage.json"))]


def _run(folder: Path) -> Run:
    about = json.loads((folder / "config.json").read_text())["about"]
    result = json.loads((folder / "result.json").read_text())
    storage = json.loads((folder / "storage.json").read_text())
    rounded = storage.get("eight_bits", {})
    return Run(
        net=folder.parents[2].name,
        method=about["method"],
        label=folder.parent.name,
        seed=about["seed"],
        learned=[row[task] for task, row in enumerate(result["matrix"])],
        end=result["final"],
        eight_bits=rounded.get("final"),
        bytes=storage["bytes"],
        eight_bits_total=rounded.get("bytes"),
    )


def points(runs: Sequence[Run]) -> list[Point]:
    """Runs gathered over seeds; independent methods also with the smaller numbers of tasks."""
    asked = {net: {run.tasks for run in runs if run.net == net} for net in {r.net for r in runs}}
    grouped: dict[tuple[str, str, str, int], dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: run.tasks):
        more = [n for n in asked[run.net] if n < run.tasks] if run.method in INDEPENDENT else []
        for tasks in (*more, run.tasks):
            seeds = grouped.setdefault((run.net, run.method, run.label, tasks), {})
            seeds[run.seed] = run.first(tasks) if tasks < run.tasks else run
    found = []
    for (net, method, label, tasks), by_seed in grouped.items():
        own = list(by_seed.values())
        learned = [100 * fmean(run.learned) for run in own]
        whole = own[0].bytes
        end = [100 * fmean(run.end) for run in own]
        found.append(
            Point(net, method, label, tasks, learned, end, whole["total"], whole["network"])
        )
        rounded = [100 * fmean(run.eight_bits) for run in own if run.eight_bits]
        if rounded and own[0].eight_bits_total is not None:
            total = own[0].eight_bits_total
            name = f"{label}{EIGHT}"
            found.append(Point(net, method, name, tasks, learned, rounded, total, whole["network"]))
    return sorted(found, key=lambda point: (point.net, point.tasks, point.total))


def rival(point: Point, among: Iterable[Point]) -> Point | None:
    """The LoRA of the same bytes, or of the next rank above, with as many bits a number."""
    able = [
        other
        for other in among
        if (other.net, other.tasks, other.method) == (point.net, point.tasks, "lora")
        and other.label.endswith(EIGHT) == point.label.endswith(EIGHT)
        and other.total >= point.total
    ]
    return min(able, key=lambda other: other.total, default=None)


def table(found: Sequence[Point]) -> str:
    """All points, in markdown."""
    lines = []
    for net in dict.fromkeys(point.net for point in found):
        lines += [
            f"### {TITLES.get(net, net)}",
            "",
            "| tasks | method | when learned | at the end | kB a task, all counted | networks "
            "| LoRA of these bytes or more | seeds |",
            "|---" * 8 + "|",
        ]
        for point in (one for one in found if one.net == net):
            beside = rival(point, found) if point.method in ("superposed", "scrambled") else None
            other = f"{beside.label.removeprefix('lora-')}: {_told(beside.end)}" if beside else ""
            lines.append(
                f"| {point.tasks} | {point.label} | {_told(point.learned)} | {_told(point.end)} "
                f"| {point.total / point.tasks / 1e3:.1f} | {point.total / point.network:.2f} "
                f"| {other} | {len(point.end)} |"
            )
        lines.append("")
    return "\n".join(lines)


def _told(values: list[float]) -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}"


def draw(results: Path, show: Sequence[str] = ()) -> None:
    """Write `table.md`, `points.json` and the figure beside the runs.

    `show` names the superposed methods that are drawn, all if it is empty.
    """
    found = points(read(results))
    write(results / "table.md", table(found).encode())
    write(
        results / "points.json", (json.dumps([asdict(p) for p in found], indent=1) + "\n").encode()
    )
    nets = [net for net in TITLES if any(point.net == net for point in found)]
    with style.style():
        figure = style.new(4.6 * len(nets) + 0.6, 3.8)
        for axes, net in zip(figure.subplots(1, len(nets), squeeze=False)[0], nets, strict=True):
            _panel(axes, [point for point in found if point.net == net], show)
            axes.set_title(TITLES[net])
        style.caption(figure, CAPTION)
        style.save(figure, results / "tasks")


def _panel(axes: Any, found: Sequence[Point], show: Sequence[str]) -> None:
    ends = []
    axes.set(xscale="log", xlabel="tasks", ylabel="accuracy at the end, mean of all tasks (%)")
    ticks = sorted({point.tasks for point in found})
    axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.minorticks_off()
    plain = [p for p in found if not p.label.endswith(EIGHT)]  # the others lie on top of them
    for method, colour in COLOURS.items():
        for label in dict.fromkeys(p.label for p in plain if p.method == method):
            ends.append(_line(axes, [p for p in found if p.label == label], label, colour, "-"))
    wanted = [p for p in found if p.method == "superposed" and (not show or p.label in show)]
    for label, colour in zip(dict.fromkeys(p.label for p in wanted), PALETTE * 9, strict=False):
        own = [p for p in wanted if p.label == label]
        ends.append(_line(axes, own, label.removeprefix("superposed-"), colour, "-"))
        beside = [other for point in own if (other := rival(point, found))]
        if beside:
            ends.append(_line(axes, beside, "LoRA, as many bytes", colour, ":"))
    if not wanted:
        for label in dict.fromkeys(p.label for p in plain if p.method == "lora"):
            ends.append(_line(axes, [p for p in found if p.label == label], label, "#0072B2", ":"))
    axes.margins(x=0.08)
    style.label_ends(axes, ends, size=7)


def _line(
    axes: Any, own: Sequence[Point], text: str, colour: str, dashes: str
) -> tuple[str, float, float, str]:
    x, y = [point.tasks for point in own], [point.mean for point in own]
    axes.plot(x, y, color=colour, linestyle=dashes, marker="o", markersize=3)
    return text, x[-1], y[-1], colour


CAPTION = (
    "Tasks are learned one after the other from a pretrained network; accuracy after the last. "
    "Dotted: LoRA adapters of at least the bytes of the line of the same colour, everything "
    "counted: network, superposed weight, adapters, heads, norms, means."
)
