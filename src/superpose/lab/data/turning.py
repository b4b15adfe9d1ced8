"""Turned images: each task turns all images by ten degrees more."""

from dataclasses import dataclass

import torch

from superpose.lab.data.datasets import normalise
from superpose.lab.data.permuting import Permuting
from superpose.lab.data.rotating import rotate

TURN = 10  # degrees


@dataclass(frozen=True, eq=False)
class Turning(Permuting):
    """Task k is turned by 10° · k, as in SupSup's rotated MNIST; its images stand still.

    >>> from superpose.lab.data import load
    >>> stream = Turning(load("digits"), period=10, tasks=36)
    >>> upright, half = stream.test(0)[0], stream.test(18)[0]
    >>> torch.allclose(half, upright.flip(1), atol=1e-3)
    True
    """

    def degrees(self, task: int, other: int) -> int:
        """Tell how far two tasks are apart, the shorter way round.

        >>> from superpose.lab.data import load
        >>> Turning(load("digits"), tasks=36).degrees(1, 35)
        20
        """
        between = TURN * (task - other) % 360
        return min(between, 360 - between)

    def _permuted(self, images: torch.Tensor, task: int) -> torch.Tensor:
        turned = rotate(images.view(-1, *self.dataset.shape), TURN * task)
        return normalise(turned, self.dataset.kind).flatten(1)
