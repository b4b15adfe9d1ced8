"""Sample images of the streams: Figure 4 (left) and Figure 6 (left)."""

from pathlib import Path
from typing import Any

import torch

from superpose_lab.data import ImageStream, Incremental, Rotating, load
from superpose_lab.data.datasets import SCALES
from superpose_lab.figures import Scale
from superpose_lab.figures.claims import exact
from superpose_lab.figures.style import GREY, caption, new
from superpose_lab.figures.table import Column, Row, Table

IMAGES = 3  # of a batch


ROTATING = (
    Column("dataset", "data set"),
    Column("period", "steps of a turn", "number"),
    Column("contexts", "context at each eighth of a turn"),
)
INCREMENTAL = (
    Column("task", "task", "number"),
    Column("dataset", "data set"),
    Column("classes", "classes"),
    Column("tests", "test images", "number"),
)


def rotating(scale: Scale, data_dir: Path | None) -> Table:
    """Training batches of rotating streams, an eighth of a turn apart: a column each."""
    names = ("digits",) if scale == "smoke" else ("mnist", "fashion-mnist")
    images: list[Row] = []
    rows, holds = [], []
    for name in names:
        stream = Rotating(load(name, data_dir), seed=0)
        steps = [eighth * stream.period // 8 for eighth in range(9)]
        batches = torch.stack([stream.batch(step).x[:IMAGES] for step in steps])
        titles = [name, *[""] * (IMAGES - 1)]
        images += [_row(stream, title, batches[:, i]) for i, title in enumerate(titles)]
        contexts = ", ".join(str(stream.context_at(step)) for step in steps)
        rows.append({"dataset": name, "period": stream.period, "contexts": contexts})
        turned = all(stream.angle_at(step) == 45 * n % 360 for n, step in enumerate(steps))
        upright, quarter = stream.test_at(0)[0], stream.test_at(stream.angle_at(steps[2]))[0]
        turned &= torch.allclose(quarter, upright.rot90(1, (-2, -1)), atol=1e-3)
        again = stream.context_at(0) == stream.context_at(stream.period)
        holds.append(turned and again and (stream.period, stream.contexts) == (1000, 10))
    text = "images turn counter-clockwise by 360° in 1000 steps, and ten contexts come again"
    claims = [exact(text, all(holds), f"contexts {rows[0]['contexts']}")]
    about = f"a column is the first {IMAGES} images of the training batch of that step, seed 0"
    titles = [f"step {step}\n{stream.angle_at(step):g}°" for step in steps]
    return Table(ROTATING, rows, claims, about, picture={"images": images, "titles": titles})


def incremental(scale: Scale, data_dir: Path | None) -> Table:
    """One test image of each class: a row for each task."""
    if scale == "smoke":
        stream = Incremental(load("digits", data_dir), group=2, tasks=5, seed=0)
    else:
        first = load("cifar10", data_dir)
        stream = Incremental(load("cifar100", data_dir), first=first, tasks=5, seed=0)
    images, rows = [], []
    for task, group in enumerate(stream.groups):
        x, y = stream.test(task)
        firsts = [int((y == label).nonzero()[0]) for label in y.unique()]
        source = stream.dataset if task or stream.first is None else stream.first
        classes = f"{group.start}–{group.stop - 1}"
        title = f"task {task + 1}: {source.name}\nclasses {classes}"
        images.append(_row(stream, title, x[firsts]))
        row = {"task": task + 1, "dataset": source.name, "classes": classes, "tests": len(y)}
        rows.append(row)
    sets = [row["dataset"] for row in rows] == ["cifar10"] + ["cifar100"] * 4
    labels = [label for group in stream.groups for label in group]
    tens = all(len(group) == 10 for group in stream.groups) and len(set(labels)) == len(labels)
    text = "CIFAR-10 first, then disjoint sets of ten classes of CIFAR-100"
    ours = "; ".join(f"{row['dataset']} {row['classes']}" for row in rows)
    claims = [exact(text, sets and tens, ours)]
    about = "the first test image of each class, seed 0"
    return Table(INCREMENTAL, rows, claims, about, picture={"images": images, "titles": []})


def _row(stream: ImageStream, title: str, x: torch.Tensor) -> Row:
    """Images side by side: (N, channels, H, W) `uint8`."""
    scale, shift = SCALES[stream.dataset.kind]
    pixels = ((x.reshape(-1, *stream.dataset.shape) - shift) / scale).round().clamp(0, 255)
    return {"title": title, "pixels": pixels.to(torch.uint8).numpy()}


def draw(table: Table) -> Any:
    """A grid of images."""
    rows, titles = table.picture["images"], table.picture["titles"]
    count = len(rows[0]["pixels"])
    figure = new(0.62 * count + 1.9, 0.64 * len(rows) + (0.85 if titles else 0.6))
    panels = figure.subplots(len(rows), count, squeeze=False)
    for line, row in zip(panels, rows, strict=True):
        for axes, image in zip(line, row["pixels"], strict=True):
            grey = image.shape[0] == 1
            picture = 255 - image[0] if grey else image.transpose(1, 2, 0)
            axes.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(True)
            axes.spines[:].set_color("#CCCCCC")
        line[0].set_ylabel(row["title"], rotation=0, ha="right", va="center", labelpad=6)
    for axes, title in zip(panels[0], titles, strict=False):
        axes.set_title(title, loc="center", fontsize=9, fontweight="normal", color=GREY)
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    caption(figure, table.heading)
    return figure
