"""Pictures of accuracy over time, of averages, and of variants beside each other."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from superpose_lab.figures.style import COLOURS, GREY, caption, label_ends, line, new
from superpose_lab.figures.table import Row, Table

End = tuple[str, float, float, str]
INCHES = 0.077  # of a letter of a label


def by_method(table: Table) -> Any:
    """One panel, a line for each method."""
    figure = new(7.2, 4.3)
    axes = figure.subplots()
    ends = _panel(axes, table, table.rows, 6.4)
    caption(figure, small_print(table))
    label_ends(axes, ends)
    return figure


def by_size(table: Table) -> Any:
    """A panel for each size of the network that was run."""
    ran = (row for row in table.rows if row["run"] in table.picture["curves"])
    sizes = list(dict.fromkeys(row["size"] for row in ran))
    what = next(column.title for column in table.columns if column.key == "size")
    columns = min(len(sizes), 3)
    lines = -(-len(sizes) // columns)
    width = 3.8 if columns > 1 else 6.0
    figure = new(width * columns, 2.75 * lines + 0.5)
    panels = figure.subplots(lines, columns, squeeze=False)
    for axes in panels.flat[len(sizes) :]:
        axes.set_axis_off()
    ends = []
    for number, (axes, size) in enumerate(zip(panels.flat, sizes, strict=False)):
        axes.set_title(f"{what} {size}" if what == "width" else f"{size} {what}")
        rows = [row for row in table.rows if row["size"] == size]
        ends.append((axes, _panel(axes, table, rows, width - 0.6)))
        if number % columns:
            axes.set_ylabel("")
        if number + columns < len(sizes):
            axes.set_xlabel("")
    caption(figure, small_print(table))
    for axes, labels in ends:
        label_ends(axes, labels)
    return figure


def _panel(axes: Any, table: Table, rows: Sequence[Row], width: float) -> list[End]:
    """Draw lines, and the end of the tenth task as a dotted line; return labels for line ends.

    `width` is about that of the panel in inches: some of it is left for the labels.
    """
    shown = [row for row in rows if row["run"] in table.picture["curves"]]
    longest = max(curve["steps"][-1] for curve in table.picture["curves"].values())
    unit = 1000 if longest >= 2000 else 1
    for row in shown:
        line(axes, table.picture["curves"][row["run"]], COLOURS[row["method"]], unit)
    axes.set_ylim(*_range(table))
    axes.set_ylabel(table.picture["ylabel"])
    axes.set_xlabel("training steps, thousands" if unit > 1 else "training steps")
    end = max(table.picture["curves"][row["run"]]["steps"][-1] for row in shown) / unit
    label = "mean" if table.picture["turns"] else "first_task"
    ends = []
    for row in shown:
        name = table.picture["labels"].get(row["method"], row["method"])
        value = 100 * row[label].mean
        last = table.picture["curves"][row["run"]]["steps"][-1] / unit
        ends.append((f"{name}  {value:.1f}", last, value, COLOURS[row["method"]]))
    written = 0.2 + INCHES * max(len(text) for text, *_ in ends)
    share = (width - written) / width  # of the panel, for the lines
    axes.set_xlim(0, end / share)
    axes.xaxis.label.set_x(share / 2)
    axes.set_xticks([round(end * quarter / 5, 6) for quarter in range(6)])
    axes.spines["bottom"].set_bounds(0, end)
    if table.picture["ten_tasks"] is not None:
        ten = table.picture["ten_tasks"] / unit
        axes.axvline(ten, color="#B22222", ls=":", lw=1.2)
        bottom = axes.get_ylim()[0]
        axes.annotate(
            "ten tasks",
            (ten, bottom),
            xytext=(3, 3),
            textcoords="offset points",
            color="#B22222",
            fontsize=7.5,
        )
    return ends


def _range(table: Table) -> tuple[float, float]:
    """The range of percentages: all, or, close up, those of the second half."""
    curves = [curve["mean"] for curve in table.picture["curves"].values()]
    if table.picture["close_up"]:
        late = [100 * value for mean in curves for value in mean[len(mean) // 2 :]]
        room = 0.15 * (max(late) - min(late)) + 0.2
        return min(late) - room, max(late) + room
    lowest = 100 * min(map(min, curves))
    return max(0, lowest - 6 - 0.1 * (100 - lowest)), 101.5


def averages(table: Table) -> Any:
    """The mean of the last ten tasks, of all, and the paper's figure, for each method."""
    figure = new(7.2, 0.42 * len(table.rows) + 1.6)
    axes = figure.subplots()
    full = max(row["size"] for row in table.rows)
    rows = table.rows[::-1]
    names = [r["method"] + ("" if r["size"] == full else f", {r['size']} units") for r in rows]
    for place, row in enumerate(rows):
        colour = COLOURS[row["method"]]
        if row["mean_last_ten"] is None:
            axes.text(1, place, "not run yet", va="center", color=GREY, fontsize=8)
        else:
            ten, every = row["mean_last_ten"], row["mean_all"]
            axes.barh(place, 100 * ten.mean, height=0.62, color=colour, alpha=0.5)
            axes.plot([100 * every.mean] * 2, [place - 0.31, place + 0.31], color="k", lw=1.4)
            axes.text(1, place, f"{ten}", va="center", fontweight="bold", fontsize=8.5)
            text = f"all tasks {every}"
            axes.text(110, place, text, va="center", color=GREY, fontsize=8, clip_on=False)
        if row["paper"] is not None:
            axes.scatter(100 * row["paper"], place, marker="D", s=34, color="k", zorder=3)
            axes.annotate(
                f"{100 * row['paper']:.1f}",
                (100 * row["paper"], place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 130)
    axes.set_xticks(range(0, 101, 20))
    axes.spines["bottom"].set_bounds(0, 100)
    axes.grid(False)
    axes.set_xlabel("test accuracy, %: mean of the last ten tasks")
    caption(
        figure,
        small_print(table)
        + "\nBars: mean of the last ten tasks. Black strokes: mean of all tasks. "
        "Diamonds: the paper.",
    )
    return figure


def changes(table: Table) -> Any:
    """The mean of all tasks when each was just learned (a circle), and at the end (a dot)."""
    figure = new(7.2, 0.3 * len(table.rows) + 1.4)
    axes = figure.subplots()
    rows = table.rows[::-1]
    ran = [row for row in rows if row["mean_all"] is not None]
    low = 100 * min(row["mean_all"].mean for row in ran)
    right = min(100 * max(row["when_learned"].mean for row in ran) + 3, 100)
    left = low - 0.45 * (right + 1 - low)
    for place, row in enumerate(rows):
        if row["mean_all"] is None:
            axes.text(right, place, "not run yet", va="center", ha="right", color=GREY, fontsize=8)
            continue
        end, learned = row["mean_all"], row["when_learned"]
        colour = COLOURS["hadamard+projection" if "ours" in row["label"] else "binary"]
        axes.plot([100 * end.mean, 100 * learned.mean], [place] * 2, color=colour, lw=1.2)
        axes.scatter(100 * learned.mean, place, s=26, color="w", edgecolor=colour, zorder=3)
        axes.scatter(100 * end.mean, place, s=30, color=colour, zorder=3)
        axes.annotate(
            str(end), (100 * end.mean, place), xytext=(-6, 0), textcoords="offset points",
            va="center", ha="right", fontsize=8, fontweight="bold", color=colour,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left, right)
    axes.set_xlabel(f"{table.picture['ylabel']} (circles: each when just learned)")
    counts = Counter(row["seeds"] for row in ran)
    (usual, _), *others = counts.most_common()
    counted = [_seeds(usual)]
    for n, _ in others:
        counted.append(
            f"{_seeds(n)}: {', '.join(row['label'] for row in ran if row['seeds'] == n)}"
        )
    caption(figure, _settings_and(table, counted))
    return figure


def by_rate(table: Table) -> Any:
    """Accuracy over the learning rate, a line for each method."""
    key = "mean" if "mean" in table.picture["keys"] else "first_task"
    figure = new(7.2, 4.0)
    axes = figure.subplots()
    ends = []
    for method in dict.fromkeys(row["method"] for row in table.rows):
        ran = [row for row in table.rows if row["method"] == method and row["seeds"]]
        if ran:
            rates, means = [row["lr"] for row in ran], [row[key].mean for row in ran]
            spread = [row[key].deviation or 0.0 for row in ran]
            colour = COLOURS[method]
            line(axes, {"steps": rates, "mean": means, "deviation": spread}, colour, 1)
            axes.scatter(rates, [100 * mean for mean in means], s=26, color=colour)
            ends.append((method, rates[-1], 100 * means[-1], colour))
    rates = sorted({row["lr"] for row in table.rows})
    axes.set_xscale("log")
    axes.set_xlim(rates[0] / 1.2, rates[-1] * 1.6)
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set_xlabel("learning rate")
    axes.set_ylabel(table.picture["ylabel"])
    caption(figure, small_print(table))
    label_ends(axes, ends)
    return figure


def small_print(table: Table) -> str:
    """Scale, settings, seeds, and what has not been run."""
    counts: dict[int, list[str]] = {}
    sizes = len({row.get("size") for row in table.rows}) > 1
    for row in table.rows:
        name = row["label"] or (f"{row['method']} {row['size']}" if sizes else row["method"])
        counts.setdefault(row["seeds"], []).append(name)
    missing = counts.pop(0, [])
    if len(counts) == 1 and not missing:
        seeds = [_seeds(next(iter(counts)))]
    else:
        seeds = [f"{_seeds(n)}: {', '.join(names)}" for n, names in counts.items()]
    shade = " Shade: standard deviation." if any(n > 1 for n in counts) else ""
    turns = ""
    if table.picture["turns"]:
        turns = f" Numbers at the lines: mean of the last {table.picture['turns']:g} turns."
    yet = f" Not run yet: {', '.join(missing)}." if missing else ""
    return f"{_settings_and(table, seeds)}{shade}{turns}{yet}"


def _settings_and(table: Table, seeds: list[str]) -> str:
    """The heading of the table, and the seeds."""
    counted = "; ".join(seeds)
    return f"{table.heading} {counted[:1].upper()}{counted[1:]}."


def _seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"mean of {n} seeds"
