"""Bₖ·Aₖ·x: a few directions that a task has for itself, as in LoRA."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from superpose import keys
from superpose.keys import Key
from superpose.nn.kinds.kind import Kind

if TYPE_CHECKING:
    from superpose.nn.layer import Layer
    from superpose.nn.view import LayerView


@dataclass(frozen=True)
class LowRank(Kind):
    """`_down`, A (rank, inputs), and `_up`, B (outputs, rank), where that is less than W.

    A is drawn uniformly within ±1/√inputs, the same for all tasks; B starts at zero.
    """

    rank: int
    flat: ClassVar[str] = "rank"
    words: ClassVar[str] = "a low-rank part"
    option = "rank"

    def starts(self, layer: Layer, name: str) -> dict[str, Tensor] | None:
        bound, like = layer.bound[name], layer.stored(name)
        *lead, outputs, inputs = bound.layout.to_matrix(like).shape
        if self.rank * (outputs + inputs) >= outputs * inputs:
            return None
        key = Key(bound.context.seed, f"{bound.context.layer}:down", 0)
        down = _uniform(key, (*lead, self.rank, inputs)) * (2 / inputs**0.5)
        return {"_down": down.to(like), "_up": torch.zeros(*lead, outputs, self.rank).to(like)}

    def beside(self, own: LayerView, name: str, x: Tensor) -> Tensor:
        return x @ own.tensors[name + "_down"].mT @ own.tensors[name + "_up"].mT

    def matrix(self, own: LayerView, name: str, matrix: Tensor) -> Tensor:
        return matrix + own.tensors[name + "_up"] @ own.tensors[name + "_down"]


@lru_cache(maxsize=256)
def _uniform(key: Key, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [−½, ½)."""
    return torch.from_numpy(keys.phases(key, prod(shape))).view(shape)
