"""x − μ: the mean of a layer's input, taken out before it is bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from superpose.nn.kinds.kind import Kind

if TYPE_CHECKING:
    from superpose.nn.layer import Layer
    from superpose.nn.view import LayerView

MOMENTUM = 0.05  # the least share that a new batch has in a running mean


@dataclass(frozen=True)
class TaskMean(Kind):
    """`_mean`, the task's running mean of the input, and `_seen`, of how many batches it is.

    `_mu` is the mean as it is when a pass begins: the pass, and its gradient, keep it.
    """

    flat: ClassVar[str] = "statistics"
    words: ClassVar[str] = "a mean of inputs"
    option = "centre"

    def starts(self, layer: Layer, name: str) -> dict[str, Tensor] | None:
        features = layer.input_features(name)
        if not features:
            return None
        like = layer.stored(name)
        return {"_mean": torch.zeros(features).to(like), "_seen": torch.zeros(()).to(like)}

    def prepare(self, name: str, tensors: dict[str, Tensor]) -> None:
        mean = tensors[name + "_mean"]
        tensors[name + "_mu"] = mean.clone() if torch.is_grad_enabled() else mean

    def before(self, own: LayerView, name: str, x: Tensor) -> Tensor:
        mean = own.tensors[name + "_mu"]
        return x - (mean if mean.dtype is x.dtype else mean.to(x.dtype))

    def bias(self, layer: Layer, own: LayerView, name: str, bias: Tensor | None) -> Tensor:
        response = layer.response(own, name, own.tensors[name + "_mu"])
        return -response if bias is None else bias - response.to(bias.dtype)

    @torch.no_grad()
    def note(self, layer: Layer, own: LayerView, name: str, x: Tensor) -> None:
        mean, seen = own.tensors[name + "_mean"], own.tensors[name + "_seen"]
        seen += 1
        share = seen.reciprocal().clamp_min(MOMENTUM)
        mean.lerp_(x.detach().flatten(0, -2).mean(0).to(mean.dtype), share)


@dataclass(frozen=True)
class RowMean(Kind):
    """The mean of each row's own entries: nothing is kept."""

    option = "centre"

    def starts(self, layer: Layer, name: str) -> dict[str, Tensor] | None:
        return {}

    def before(self, own: LayerView, name: str, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    def matrix(self, own: LayerView, name: str, matrix: Tensor) -> Tensor:
        return matrix - matrix.mean(-1, keepdim=True)
