"""Permuted pixels: each task shuffles the pixels of all images in another way."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from superpose_lab.data.datasets import normalise
from superpose_lab.data.image_stream import ImageStream, Periodic
from superpose_lab.data.pool import Pair, Pool
from superpose_lab.data.shuffle import PIXELS, shuffle


@dataclass(frozen=True, eq=False)
class Permuting(Periodic, ImageStream):
    """Every `period` steps a new permutation of the pixels, the first of which is the identity.

    >>> from superpose_lab.data import load
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

    def permutation(self, task: int) -> torch.Tensor:
        """The source of each pixel of a task: x_task[i] = x[permutation[i]]."""
        (size,) = self.input_shape
        order = shuffle(size, self.seed, PIXELS, task) if task else torch.arange(size)
        return order.to(self.device, copy=True)

    def _fill(self) -> tuple[Pool, ...]:
        return (self._pool(self.dataset),)

    def _train(self, step: int) -> Pair:
        images, labels = self._pools[0].draw(step)
        return self._transformed(images, self.task_at(step)), labels

    def _test(self, task: int) -> Pair:
        images, labels = self._pools[0].test
        return self._transformed(images, task), labels

    def _transformed(self, images: torch.Tensor, task: int) -> torch.Tensor:
        pixels = normalise(images.flatten(1), self.dataset.kind)
        return pixels.index_select(1, self.permutation(task)) if task else pixels


@dataclass(frozen=True, eq=False)
class Returning(Permuting):
    """Five permutations that come back in a fixed order, twelve periods in all.

    >>> from superpose_lab.data import load
    >>> stream = Returning(load("digits"), period=10)
    >>> len(stream), [stream.task_at(step) for step in (0, 10, 20, 30, 40)]
    (120, [0, 1, 2, 0, 3])
    """

    order: ClassVar[tuple[int, ...]] = (0, 1, 2, 0, 3, 1, 4, 3, 2, 4, 0, 1)
    tasks: int = 5

    def __len__(self) -> int:
        return self.period * len(self.order)

    def task_at(self, step: int) -> int:
        """The permutation of a step."""
        return self.order[step // self.period]
