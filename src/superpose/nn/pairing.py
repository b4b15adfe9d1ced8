"""Layers of one shape that change places, differently for each task."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superpose.keys import Key, permutation

if TYPE_CHECKING:
    from superpose.nn.layer import Layer


@dataclass(frozen=True)
class Pairing:
    """Layers whose weights have one shape, and change places in an order drawn for each task.

    What task k has in layer i is kept in the weight of layer π(i), with π from the key (seed,
    shape, k), so that what tasks keep in one place belongs to unrelated layers.
    """

    layers: list[Layer]
    seed: int
    shape: tuple[int, ...]

    def slot(self, layer: Layer, task: int) -> Layer:
        """The layer in whose weight this one's is kept for a task."""
        order = _order(Key(self.seed, f"random pairing {self.shape}", task), len(self.layers))
        return self.layers[order[self.layers.index(layer)]]


_order = functools.lru_cache(maxsize=4096)(permutation)


def pair(layers: Iterable[Layer], seed: int) -> None:
    """Let layers of one bound weight change places with those whose weight has the same shape."""
    pairings: dict[object, Pairing] = {}
    alone = [layer for layer in layers if len(layer.contexts) == 1]
    for layer in sorted(alone, key=lambda one: one.path):  # whatever their order in the network
        (name,) = layer.contexts
        weight = layer.stored(name)
        alike = (name, weight.shape, weight.dtype)
        layer.pairing = pairings.setdefault(alike, Pairing([], seed, tuple(weight.shape)))
        layer.pairing.layers.append(layer)
