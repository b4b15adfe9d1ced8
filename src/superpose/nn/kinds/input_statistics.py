"""Statistics of the inputs of one layer, by which a task is recognised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from superpose.nn.kinds.kind import Kind
from superpose.nn.statistics import Statistics, Usual

if TYPE_CHECKING:
    from superpose.nn.layer import Layer
    from superpose.nn.view import LayerView

ENDINGS = ("_input_rows", "_input_mean", "_input_variance", "_input_distance", "_input_basis")


@dataclass(frozen=True)
class InputStatistics(Kind):
    """`_input_rows` and so on: the parts of `Usual`, of the inputs of the layer at `path`."""

    path: str
    wanted: Statistics
    flat: ClassVar[str] = "recognition"
    words: ClassVar[str] = "statistics of inputs"
    option = "recognise"
    endings: ClassVar[tuple[str, ...]] = ENDINGS

    def starts(self, layer: Layer, name: str) -> dict[str, Tensor] | None:
        if layer.path != self.path or name != "weight":
            return None
        m, c, r = layer.input_features(name), self.wanted.classes, self.wanted.rank
        shapes = ((c,) if c else (), (c, m) if c else (m,), (m,), (2,), (r, m))
        like = layer.stored(name)
        wide = like.dtype if like.dtype == torch.float64 else torch.float32  # it counts rows
        zeros = (torch.zeros(shape, dtype=wide, device=like.device) for shape in shapes)
        return dict(zip(ENDINGS, zeros, strict=True))

    def note(self, layer: Layer, own: LayerView, name: str, x: Tensor) -> None:
        if not self.wanted.only_told:
            kept = Usual.of(*(own.tensors[name + ending] for ending in ENDINGS))
            kept.update(
                by_rows(layer, x.detach()), forget=self.wanted.forget, most=self.wanted.most
            )


def by_rows(layer: Layer, inputs: Tensor) -> Tensor:
    """A vector for each row of inputs (rows, …, features): the mean of all of its places."""
    front = inputs.real if inputs.is_complex() else inputs
    if inputs.ndim < 3:
        return front
    return front.movedim(layer.row_dim or 0, 0).flatten(1, -2).mean(1)
