"""Random orders that are the same on every machine."""

from functools import lru_cache

import numpy as np
import torch

ORDER = 0  # what a shuffle is for: two uses of one seed must not share their numbers


@lru_cache(maxsize=16)
def shuffle(count: int, seed: int, use: int, *numbers: int) -> torch.Tensor:
    """Shuffle 0 … count − 1, the same way on every machine.

    It is the order of `count` raw words of Philox 4×64 under the key `seed`, from the counter
    (0, use, *numbers): raw words are the part of NumPy's generators that never changes.

    >>> shuffle(6, 0, ORDER, 1).tolist()
    [1, 2, 3, 5, 0, 4]
    """
    counter = [0, use, *numbers, 0][:4]
    words = np.random.Philox(key=seed, counter=counter).random_raw(count)
    return torch.from_numpy(np.argsort(words, kind="stable"))
