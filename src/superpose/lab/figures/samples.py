"""Sample images of the streams: Figure 4 (left) and Figure 6 (left)."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch

from superpose.lab.data import ImageStream, Incremental, Rotating, load
from superpose.lab.data.datasets import SCALES
from superpose.lab.figures.findings import DIFFERS, REPRODUCED, Findings, Row, check, column
from superpose.lab.figures.style import GREY, caption, new

IMAGES = 3  # of a batch


def rotating(scale: str, data_dir: Path | None) -> Findings:
    """Training batches of rotating streams, an eighth of a turn apart: a column each."""
    names = ("digits",) if scale == "smoke" else ("mnist", "fashion-mnist")
    rows: list[Row] = []
    facts, as_said = [], []
    for name in names:
        stream = Rotating(load(name, data_dir), seed=0)
        steps = [eighth * stream.period // 8 for eighth in range(9)]
        batches = torch.stack([stream.batch(step).x[:IMAGES] for step in steps])
        titles = [name, *[""] * (IMAGES - 1)]
        rows += [_row(stream, title, batches[:, i]) for i, title in enumerate(titles)]
        contexts = ", ".join(str(stream.context_at(step)) for step in steps)
        facts.append({"dataset": name, "period": stream.period, "contexts": contexts})
        turned = all(stream.angle_at(step) == 45 * n % 360 for n, step in enumerate(steps))
        upright, quarter = stream.test_at(0)[0], stream.test_at(stream.angle_at(steps[2]))[0]
        turned &= torch.allclose(quarter, upright.rot90(1, (-2, -1)), atol=1e-3)
        again = stream.context_at(0) == stream.context_at(stream.period)
        as_said.append(turned and again and (stream.period, stream.contexts) == (1000, 10))
    claim = "images turn counter-clockwise by 360° in 1000 steps, and ten contexts come again"
    columns = [
        column("dataset", "data set"),
        column("period", "steps of a turn", "number"),
        column("contexts", "context at each eighth of a turn"),
    ]
    return {
        "columns": columns,
        "rows": facts,
        "checks": [check(claim, "yes", f"contexts {facts[0]['contexts']}", _verdict(all(as_said)))],
        "titles": [f"step {step}\n{stream.angle_at(step):g}°" for step in steps],
        "images": rows,
        "about": f"a column is the first {IMAGES} images of the training batch of that step",
    }


def incremental(scale: str, data_dir: Path | None) -> Findings:
    """One test image of each class: a row for each task."""
    if scale == "smoke":
        stream = Incremental(load("digits", data_dir), group=2, tasks=5, seed=0)
    else:
        first = load("cifar10", data_dir)
        stream = Incremental(load("cifar100", data_dir), first=first, tasks=5, seed=0)
    rows, facts = [], []
    for task, group in enumerate(stream.groups):
        x, y = stream.test(task)
        firsts = [int((y == label).nonzero()[0]) for label in y.unique()]
        source = stream.dataset if task or stream.first is None else stream.first
        classes = f"{group.start}–{group.stop - 1}"
        rows.append(_row(stream, f"task {task + 1}: {source.name}\nclasses {classes}", x[firsts]))
        fact = {"task": task + 1, "dataset": source.name, "classes": classes, "tests": len(y)}
        facts.append(fact)
    ours = "; ".join(f"{fact['dataset']} {fact['classes']}" for fact in facts)
    sets = [fact["dataset"] for fact in facts] == ["cifar10"] + ["cifar100"] * 4
    labels = [label for group in stream.groups for label in group]
    tens = all(len(group) == 10 for group in stream.groups) and len(set(labels)) == len(labels)
    claim = "CIFAR-10 first, then disjoint sets of ten classes of CIFAR-100"
    columns = [
        column("task", "task", "number"),
        column("dataset", "data set"),
        column("classes", "classes"),
        column("tests", "test images", "number"),
    ]
    return {
        "columns": columns,
        "rows": facts,
        "checks": [check(claim, "yes", ours, _verdict(sets and tens))],
        "titles": [],
        "images": rows,
        "about": "the first test image of each class",
    }


def _verdict(as_said: bool) -> str:
    return REPRODUCED if as_said else DIFFERS


def _row(stream: ImageStream, title: str, x: torch.Tensor) -> Row:
    """Images side by side, as bytes: (channels, H, W) each."""
    scale, shift = SCALES[stream.dataset.kind]
    pixels = ((x.reshape(-1, *stream.dataset.shape) - shift) / scale).round().clamp(0, 255)
    data = pixels.to(torch.uint8).numpy().tobytes()
    return {
        "title": title,
        "shape": list(pixels.shape),
        "pixels": base64.b64encode(data).decode("ascii"),
    }


def draw(found: Findings) -> Any:
    """A grid of images."""
    rows, titles = found["images"], found["titles"]
    count = rows[0]["shape"][0]
    figure = new(0.62 * count + 1.9, 0.64 * len(rows) + (0.85 if titles else 0.6))
    panels = figure.subplots(len(rows), count, squeeze=False)
    for line, row in zip(panels, rows, strict=True):
        raw = np.frombuffer(base64.b64decode(row["pixels"]), np.uint8).reshape(row["shape"])
        for axes, image in zip(line, raw, strict=True):
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
    caption(figure, f"{found['title']}. Scale {found['scale']}, seed 0: {found['about']}.")
    return figure
