"""Contact sheets: what a stream shows a network, as a picture."""

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from superpose.extras import require
from superpose.lab.data.datasets import SCALES
from superpose.lab.data.image_stream import ImageStream
from superpose.lab.data.incremental import Incremental
from superpose.lab.data.pool import Pair
from superpose.lab.data.rotating import Rotating

ROWS, COLUMNS = 10, 10


def contact_sheet(stream: ImageStream, out: str | os.PathLike[str]) -> None:
    """Draw one test image of each class a column, and a row for each task or angle."""
    require("a picture", "matplotlib")
    from matplotlib.figure import Figure

    titles, pairs = zip(*_rows(stream), strict=True)
    strips = [_strip(stream, *pair) for pair in pairs]
    height, width, _ = strips[0].shape
    figure = Figure(figsize=(0.6 * width / height, 0.65 * len(strips)))
    whole = {"left": 0, "right": 1, "bottom": 0, "top": 1, "hspace": 0.1}
    panels = figure.subplots(len(strips), squeeze=False, gridspec_kw=whole).flat
    for axes, title, strip in zip(panels, titles, strips, strict=True):
        axes.imshow(strip, vmin=0, vmax=1, interpolation="nearest")
        axes.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=9)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    unsigned = {"Software": None}  # the same stream makes the same file whatever wrote it
    figure.savefig(
        out, format="png", dpi=120, bbox_inches="tight", pad_inches=0.05, metadata=unsigned
    )


def _rows(stream: ImageStream) -> Iterator[tuple[str, Pair]]:
    if isinstance(stream, Rotating):
        for row in range(ROWS):
            angle = row * 360 / ROWS
            yield f"{angle:g}°, context {stream.context_of(angle)}", stream.test_at(angle)
        return
    for task in range(min(stream.tasks, ROWS)):
        title = f"task {task}"
        if isinstance(stream, Incremental):
            source = stream.dataset if task or stream.first is None else stream.first
            group = stream.groups[task]
            title = f"task {task}: {source.name}\n{group.start}–{group.stop - 1}"
        yield title, stream.test(task)


def _strip(stream: ImageStream, x: torch.Tensor, y: torch.Tensor) -> npt.NDArray[np.float32]:
    """Put the first image of each class side by side, one pixel apart: (H, W · columns, 3)."""
    first = [int((y == label).nonzero()[0]) for label in y.unique()[:COLUMNS]]
    scale, shift = SCALES[stream.dataset.kind]
    images = (x[first].cpu().reshape(-1, *stream.dataset.shape) - shift) / (255 * scale)
    framed = torch.nn.functional.pad(images.expand(-1, 3, -1, -1), (1, 1, 1, 1), value=1.0)
    return framed.clamp(0, 1).permute(2, 0, 3, 1).reshape(framed.shape[2], -1, 3).numpy()
