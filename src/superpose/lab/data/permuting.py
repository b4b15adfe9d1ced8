"""Permuted pixels: each task shuffles the pixels of all images in its own way."""

import math
from dataclasses import dataclass

import torch

from superpose.lab.data.datasets import normalise
from superpose.lab.data.image_stream import ImageStream
from superpose.lab.data.pool import Pair, Pool
from superpose.learning.shuffle import PIXELS, shuffle
from superpose.learning.streams import Periodic


@dataclass(frozen=True, eq=False)
class Permuting(Periodic, ImageStream):
    """Every `period` steps a new permutation of the pixels, the first of which is the identity.

    >>> from superpose.lab.data import load
    >>> stream = Permuting(load("digits"), period=10, tasks=3, batch_size=4)
    >>> batch = stream.batch(25)
    >>> tuple(batch.x.shape), batch.task, batch.context
    ((4, 64), 2, 2)
    """

    period: int = 1000
    tasks: int = 50

    @property
    def input_shape(self) -> tuple[int, ...]:
        """One axis: a permutation leaves neither rows nor columns."""
        return (math.prod(self.dataset.shape),)

    @property
    def classes(self) -> int:
        """Those of the data set."""
        return self.dataset.classes

    def permutation(self, task: int) -> torch.Tensor:
        """Tell where each pixel of a task comes from: x_task[i] = x[permutation[i]]."""
        (size,) = self.input_shape
        order = shuffle(size, self.seed, PIXELS, task) if task else torch.arange(size)
        return order.to(self.device, copy=True)

    def _fill(self) -> tuple[Pool, ...]:
        return (self._pool(self.dataset),)

    def _train(self, step: int) -> Pair:
        images, labels = self._pools[0].draw(step)
        return self._permuted(images, self.task_at(step)), labels

    def _test(self, task: int) -> Pair:
        images, labels = self._pools[0].test
        return self._permuted(images, task), labels

    def _permuted(self, images: torch.Tensor, task: int) -> torch.Tensor:
        pixels = normalise(images.flatten(1), self.dataset.kind)
        return pixels.index_select(1, self.permutation(task)) if task else pixels
