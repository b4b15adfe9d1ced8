"""Where streams draw from: the images of some classes, on a device, in an order for each epoch."""

from functools import lru_cache

import numpy as np
import torch

from superpose.data.datasets import Dataset, Split
from superpose.errors import SuperposeError

Device = torch.device | str
Pair = tuple[torch.Tensor, torch.Tensor]

ORDER, PIXELS = 0, 1  # what a shuffle is for: two uses of one seed must not share their numbers


class Pool:
    """Images (N, C, H, W) `uint8` of `classes` and their labels, counted from 0.

    `number` tells the pools of one stream apart: each has its own orders.
    """

    def __init__(
        self,
        dataset: Dataset,
        classes: range,
        *,
        batch_size: int,
        seed: int,
        device: Device,
        number: int,
    ) -> None:
        self._train = _tensors(dataset.train, classes, device)
        self.test = _tensors(dataset.test, classes, device)
        self._size, self._seed, self._number = batch_size, seed, number
        self._count = len(self._train[1])
        if self._count < batch_size:
            raise SuperposeError(
                f"batch_size {batch_size} is more than the {self._count} images of {dataset.name}"
            )

    def draw(self, step: int) -> Pair:
        """Take the images and labels of a step."""
        epoch, place = divmod(step, self._count // self._size)
        order = shuffle(self._count, self._seed, ORDER, self._number, epoch)
        images, labels = self._train
        rows = order[place * self._size : (place + 1) * self._size].to(labels.device)
        return images.index_select(0, rows), labels.index_select(0, rows)


def _tensors(split: Split, classes: range, device: Device) -> Pair:
    chosen = (classes.start <= split.labels) & (split.labels < classes.stop)
    images, labels = split if chosen.all() else (split.images[chosen], split.labels[chosen])
    images = np.require(images, requirements="W")  # PyTorch warns of arrays that are read-only
    shifted = labels.astype(np.int64) - classes.start
    return torch.from_numpy(images).to(device), torch.from_numpy(shifted).to(device)


@lru_cache(maxsize=16)
def shuffle(count: int, seed: int, use: int, *numbers: int) -> torch.Tensor:
    """Shuffle 0 … count − 1, the same way on every machine.

    It is the order of `count` raw words of Philox 4×64 under the key `seed`, from the counter
    (0, use, *numbers): raw words are the part of NumPy's generators that never changes.

    >>> shuffle(6, 0, PIXELS, 1).tolist()
    [0, 5, 2, 1, 4, 3]
    """
    counter = [0, use, *numbers, 0][:4]
    words = np.random.Philox(key=seed, counter=counter).random_raw(count)
    return torch.from_numpy(np.argsort(words, kind="stable"))
