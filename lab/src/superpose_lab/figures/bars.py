"""Pictures of recognition: accuracy by kind of evidence, and contexts over a stream."""

from collections.abc import Sequence
from typing import Any

from superpose_lab.figures.style import COLOURS, GREY, caption, new
from superpose_lab.figures.table import Row, Table

EVIDENCE = {
    "inputs": COLOURS["binary"],
    "shortlist": COLOURS["phase"],
    "log-sum-exp": COLOURS["complex"],
    "entropy": COLOURS["hadamard"],
    "gradient": COLOURS["permutation"],
}
GIVEN, RECOGNISED = COLOURS["rotation"], COLOURS["binary"]
NAMED = 10  # tasks that have a colour and a name each
TASKS = list(dict.fromkeys(COLOURS[name] for name in COLOURS if name != "rotation"))  # black


def bars(table: Table) -> Any:
    """Accuracy by each kind of evidence, and with the task given."""
    rows = table.picture["bars"]
    turns = table.picture.get("degrees") or {}
    labels = list(dict.fromkeys(row["label"] for row in rows))
    height = 0.34 * (len(rows) + len(labels)) + 1.5
    figure = new(7.2, height + (2.2 if turns else 0))
    panels = [height, 2.2] if turns else [height]
    axes, *below = figure.subplots(len(panels), height_ratios=panels, squeeze=False)[:, 0]
    place = 0.0
    ticks: list[tuple[float, str]] = []
    for label in labels:
        axes.text(0, place, label, fontsize=8.5, fontweight="bold", va="center")
        for row in (row for row in rows if row["label"] == label):
            place -= 1
            _bar(axes, place, row)
            ticks.append((place, row["evidence"]))
        place -= 1.2
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_ylim(place + 0.5, 0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 130)
    axes.set_xticks(range(0, 101, 20))
    axes.spines["bottom"].set_bounds(0, 100)
    axes.grid(False)
    axes.set_xlabel("test accuracy with the task recognised, %")
    for panel in below:
        _degrees(panel, turns)
    how = "Bars: the task is recognised from one row by this evidence. Black strokes: it is given."
    caption(figure, f"{table.heading}\n{how}")
    return figure


def _bar(axes: Any, place: float, row: Row) -> None:
    colour = EVIDENCE[row["evidence"].split(" of ")[0]]
    if row["accuracy"] is not None:
        axes.barh(place, row["accuracy"], height=0.7, color=colour, alpha=0.55)
        text = f"{row['accuracy']:.2f}"
        axes.text(1, place, text, va="center", fontweight="bold", fontsize=8.5)
    axes.plot([row["told"]] * 2, [place - 0.35, place + 0.35], color=GIVEN, lw=1.4)
    text = f"task right {row['task_right']:.2f}"
    axes.text(104, place, text, va="center", color=GREY, fontsize=8)


def _degrees(axes: Any, turns: dict[str, dict[str, int]]) -> None:
    """Draw the degrees between recognised and right tasks."""
    for counts in turns.values():
        total = sum(counts.values())
        at = [int(degrees) for degrees in counts]
        axes.bar(
            at, [100 * n / total for n in counts.values()], width=7, color=RECOGNISED, alpha=0.55
        )
    axes.set(
        xlabel="degrees between the task recognised by inputs and the right one", ylabel="rows, %"
    )
    axes.set_xticks(range(0, 181, 30))


def contexts(table: Table) -> Any:
    """The context at every step of the longest stream, coloured by the stream's task."""
    stream = _longest(table)
    figure = new(6.4, 3.0)
    axes = figure.subplots()
    _spans(axes, stream)
    tasks = _tasks(stream)
    if 1 < len(tasks) <= NAMED:
        figure.legend(loc="outside right upper", frameon=False)
    caption(figure, table.heading)
    return figure


def drifting(table: Table) -> Any:
    """Accuracy over time with contexts given and recognised, and the recognised contexts."""
    stream = _longest(table)
    figure = new(6.4, 5.0)
    above, below = figure.subplots(2, sharex=True)
    for name, key, colour in (("given", "told", GIVEN), ("recognised", "found", RECOGNISED)):
        steps, shares = zip(*stream[f"{key}_over_time"], strict=True)
        end = f"{name}  {100 * shares[-1]:.1f}"
        above.plot(steps, [100 * share for share in shares], color=colour, label=end)
    above.set_ylabel("accuracy on upright images, %")
    above.legend(frameon=False, loc="lower right")
    _spans(below, stream)
    caption(figure, table.heading)
    return figure


def _longest(table: Table) -> dict[str, Any]:
    streams: dict[str, dict[str, Any]] = table.picture["streams"]
    return max(streams.values(), key=lambda stream: stream["spans"][-1][2])


def _tasks(stream: dict[str, Any]) -> list[int]:
    return sorted({int(task) for *_, met in stream["spans"] for task in met})


def _spans(axes: Any, stream: dict[str, Any]) -> None:
    """A bar for each time that a context was at work; a stroke where it was begun."""
    named: set[int] = set()
    for context, start, stop, met in stream["spans"]:
        task = int(max(met, key=met.get))
        label = None if task in named else f"permutation {task + 1}"
        named.add(task)
        colour = TASKS[task % len(TASKS)]
        axes.barh(context + 1, stop - start, left=start, height=0.8, color=colour, label=label)
    for begun in stream["begun"]:
        axes.plot(begun["step"], begun["context"] + 1, "k|", markersize=_stroke(stream))
    axes.set(xlabel="step (black: a new context is begun)", ylabel="context")
    count = stream["contexts"]
    every: Sequence[int] = range(1, count + 1) if count <= NAMED else range(10, count + 1, 10)
    axes.set_yticks(every)
    axes.set_ylim(count + 0.7, 0.3)
    axes.grid(False)


def _stroke(stream: dict[str, Any]) -> float:
    return max(14 * min(1, 5 / stream["contexts"]), 2)
