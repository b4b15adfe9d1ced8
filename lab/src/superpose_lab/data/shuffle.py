"""Random orders that are the same on every machine."""

from functools import lru_cache

import numpy as np
import torch

# Purposes of a shuffle. Two purposes with one seed must not share their numbers.
ORDER, PIXELS, CLASSES, ROWS, BLOCKS, LABELS = range(6)


@lru_cache(maxsize=16)
def shuffle(count: int, seed: int, purpose: int, *numbers: int) -> torch.Tensor:
    """Shuffle 0 … count − 1, the same way on every machine.

    It is the order of `count` raw words of Philox 4×64 under the key `seed`, from the counter
    (0, purpose, *numbers): raw words are the part of NumPy's generators that never changes.

    >>> shuffle(6, 0, PIXELS, 1).tolist()
    [0, 5, 2, 1, 4, 3]
    """
    counter = [0, purpose, *numbers, 0][:4]
    words = np.random.Philox(key=seed, counter=counter).random_raw(count)
    return torch.from_numpy(np.argsort(words, kind="stable"))
