"""Turned images: a stream that turns a little at every step, and one that turns task by task."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from superpose import SuperposeError
from superpose_lab.data.datasets import normalise
from superpose_lab.data.image_stream import ImageStream
from superpose_lab.data.permuting import Permuting
from superpose_lab.data.pool import Pair, Pool

TURN = 10  # degrees a task of `Turning`


def rotate(images: torch.Tensor, degrees: float) -> torch.Tensor:
    """Turn images (N, C, H, W) counter-clockwise about their centre; corners fill with 0.

    Pixels are interpolated between their four neighbours, and whole turns change nothing. All
    images share one angle, so they are sampled as the channels of one image: the sampling points
    are worked out once and not N times.

    >>> rotate(torch.tensor([[[[0, 9], [0, 0]]]]), 90)[0, 0].round()
    tensor([[9., 0.],
            [0., 0.]])
    """
    images = images.to(torch.float32)
    if degrees % 360 == 0:
        return images
    count, channels, height, width = images.shape
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    grid = F.affine_grid(
        torch.tensor([turn], device=images.device), [1, 1, height, width], align_corners=False
    )
    one = images.reshape(1, count * channels, height, width)
    return F.grid_sample(one, grid, align_corners=False).reshape(images.shape)


@dataclass(frozen=True, eq=False)
class Rotating(ImageStream):
    """One task that drifts: step t is turned by 360° · t/period, a full turn every `period` steps.

    A turn has `contexts` equal arcs, and step t has context ⌊(t mod period) · contexts/period⌋.
    The task is tested upright, in context 0; `test_at` has the other angles.

    >>> from superpose_lab.data import load
    >>> stream = Rotating(load("digits"), period=1000, contexts=10, batch_size=4)
    >>> stream.angle_at(1250), stream.context_at(1250), stream.batch(1250).x.shape
    (90.0, 2, torch.Size([4, 1, 8, 8]))
    """

    period: int = 1000
    contexts: int = 10
    steps: int = 50000

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.dataset.shape

    @property
    def tasks(self) -> int:
        """One: what changes is how its images lie."""
        return 1

    def __len__(self) -> int:
        return self.steps

    def task_at(self, step: int) -> int:
        return 0

    def context_at(self, step: int) -> int:
        """The arc that the step's angle is in."""
        return step % self.period * self.contexts // self.period

    def angle_at(self, step: int) -> float:
        """The angle of the step's batch, in degrees, below 360."""
        return 360 * (step % self.period) / self.period

    def context_of(self, degrees: float) -> int:
        """The arc that an angle is in."""
        # An angle that is the start of an arc but for rounding is in that arc.
        return int(degrees % 360 * self.contexts / 360 + 1e-9) % self.contexts

    def test_at(self, degrees: float) -> Pair:
        """Make the whole test set, turned; `context_of` is the context it is read in."""
        images, labels = self._pools[0].test
        return self._turned(images, degrees), labels

    def _fill(self) -> tuple[Pool, ...]:
        if self.contexts > self.period:
            raise SuperposeError(
                f"{self.contexts} contexts are more than the {self.period} steps of a turn"
            )
        return (self._pool(self.dataset),)

    def _train(self, step: int) -> Pair:
        images, labels = self._pools[0].draw(step)
        return self._turned(images, self.angle_at(step)), labels

    def _test(self, task: int) -> Pair:
        return self.test_at(0)

    def _turned(self, images: torch.Tensor, degrees: float) -> torch.Tensor:
        return normalise(rotate(images, degrees), self.dataset.kind)


@dataclass(frozen=True, eq=False)
class Turning(Permuting):
    """Task k is turned by 10° · k, as in SupSup's rotated MNIST; its images stand still.

    >>> from superpose_lab.data import load
    >>> stream = Turning(load("digits"), period=10, tasks=36)
    >>> upright, half = stream.test(0)[0], stream.test(18)[0]
    >>> torch.allclose(half, upright.flip(1), atol=1e-3)
    True
    """

    def degrees(self, task: int, other: int) -> int:
        """The angle between two tasks, the shorter way round.

        >>> from superpose_lab.data import load
        >>> Turning(load("digits"), tasks=36).degrees(1, 35)
        20
        """
        between = TURN * (task - other) % 360
        return min(between, 360 - between)

    def _transformed(self, images: torch.Tensor, task: int) -> torch.Tensor:
        turned = rotate(images.view(-1, *self.dataset.shape), TURN * task)
        return normalise(turned, self.dataset.kind).flatten(1)
