"""The images of some classes, on a device, shuffled anew in each epoch."""

import numpy as np
import torch

from superpose import SuperposeError
from superpose_lab.data.datasets import Dataset, LabelledImages
from superpose_lab.data.shuffle import ORDER, shuffle

Device = torch.device | str
Pair = tuple[torch.Tensor, torch.Tensor]


class Pool:
    """Images (N, C, H, W) `uint8` of `classes` and their labels, counted from 0.

    `number` is that of the pool within its stream: each is shuffled in another way.
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
                f"batch_size {batch_size} is more than the {self._count} images of {dataset.name}: "
                "choose a smaller one"
            )

    def draw(self, step: int) -> Pair:
        epoch, place = divmod(step, self._count // self._size)
        order = shuffle(self._count, self._seed, ORDER, self._number, epoch)
        images, labels = self._train
        rows = order[place * self._size : (place + 1) * self._size].to(labels.device)
        return images.index_select(0, rows), labels.index_select(0, rows)


def _tensors(split: LabelledImages, classes: range, device: Device) -> Pair:
    chosen = (classes.start <= split.labels) & (split.labels < classes.stop)
    images, labels = split if chosen.all() else (split.images[chosen], split.labels[chosen])
    images = np.require(images, requirements="W")  # PyTorch warns of arrays that are read-only
    shifted = labels.astype(np.int64) - classes.start
    return torch.from_numpy(images).to(device), torch.from_numpy(shifted).to(device)
