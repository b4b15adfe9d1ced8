"""Images whose blocks change places: tasks for a network that knows the images upright."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from superpose import SuperposeError
from superpose.learning import Batch
from superpose_lab.checks import at_least_one
from superpose_lab.data.datasets import Dataset, normalise
from superpose_lab.data.image_stream import Periodic
from superpose_lab.data.shuffle import BLOCKS, LABELS, ORDER, shuffle

HELD_OUT = 5000  # the last training images, to choose settings by


@dataclass(frozen=True, eq=False)
class Blocks(Periodic):
    """Each task has the blocks of `side` × `side` pixels in another order, and other labels.

    More tasks of the same seed begin with the same ones. A task is tested on the first `tested`
    rows of the test images, or, with `validation`, of training images that are never learned.
    """

    dataset: Dataset
    number: int
    side: int = 7
    period: int = 400
    batch_size: int = 128
    seed: int = 0
    tested: int = 2000
    validation: bool = False
    _places: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        at_least_one(tasks=self.number, side=self.side, period=self.period)
        _, height, width = self.dataset.shape
        if height % self.side or width % self.side:
            raise SuperposeError(
                f"images of {height} × {width} pixels cannot be cut into blocks of side {self.side}"
            )
        pixels = torch.arange(height * width).view(height, width)
        blocks = pixels.unfold(0, self.side, self.side).unfold(1, self.side, self.side)
        object.__setattr__(self, "_places", blocks.reshape(-1, self.side**2))  # (blocks, pixels)

    @property
    def tasks(self) -> int:
        return self.number

    def batch(self, step: int) -> Batch:
        task, within = divmod(step, self.period)
        count = len(self.dataset.train.labels) - HELD_OUT
        epoch, place = divmod(within, count // self.batch_size)
        order = shuffle(count, self.seed, ORDER, task, epoch)
        rows = order[place * self.batch_size : (place + 1) * self.batch_size].numpy()
        images, labels = self.dataset.train
        return Batch(*self._shown(images[rows], labels[rows], task), task, task)

    def test(self, task: int) -> tuple[Tensor, Tensor]:
        images, labels = self.dataset.train if self.validation else self.dataset.test
        rows = slice(-HELD_OUT, None) if self.validation else slice(None)
        return self._shown(images[rows][: self.tested], labels[rows][: self.tested], task)

    def describe(self) -> dict[str, Any]:
        names = ("number", "side", "period", "batch_size", "seed", "tested", "validation")
        settings = {name: getattr(self, name) for name in names}
        data = {"name": self.dataset.name, "digest": self.dataset.digest}
        return {"stream": "blocks", "dataset": data, **settings}

    def _shown(self, images: Any, labels: Any, task: int) -> tuple[Tensor, Tensor]:
        """Images (B, pixels) with their blocks in the task's order, and the task's labels."""
        places = torch.empty(self._places.numel(), dtype=torch.int64)
        order = shuffle(len(self._places), self.seed, BLOCKS, task)
        places[self._places.reshape(-1)] = self._places[order].reshape(-1)
        renamed = shuffle(self.dataset.classes, self.seed, LABELS, task)
        x = normalise(torch.from_numpy(images), self.dataset.kind).flatten(2)[:, :, places]
        return x.flatten(1), renamed[torch.from_numpy(labels)]
