"""A learned context: how far its numbers are from those that were drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from superpose.contexts import Context, Drawn, LayerContext
from superpose.nn.kinds.kind import Kind

if TYPE_CHECKING:
    from superpose.nn.layer import Layer

KEPT = 2048  # drawn numbers of so many tasks and layers


@dataclass(frozen=True)
class LearnedContext(Kind):
    """`_context`: the change of a context's numbers, for families that are learnable."""

    words: ClassVar[str] = "numbers of its context"
    option = "learnable"

    def starts(self, layer: Layer, name: str) -> dict[str, Tensor] | None:
        bound = layer.bound[name].context
        if not (isinstance(bound.family, Drawn) and bound.family.learnable):
            return None
        like = real_like(layer.stored(name))
        return {"_context": torch.zeros(bound.numbers(0).shape).to(like)}

    def context(
        self,
        layer: Layer,
        name: str,
        tensors: dict[str, Tensor],
        tasks: list[int],
        index: Tensor | None,
    ) -> Context:
        bound, change = layer.bound[name].context, tensors[name + "_context"]
        drawn = [_drawn(bound, task, change.device, change.dtype) for task in tasks]
        numbers = drawn[0] if index is None else torch.stack(drawn).index_select(0, index)
        return bound.make(numbers + change)


def real_like(tensor: Tensor) -> Tensor:
    """The tensor, or its real part."""
    return tensor.real if tensor.is_complex() else tensor


@lru_cache(maxsize=KEPT)
@torch.inference_mode(False)
def _drawn(bound: LayerContext, task: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch._C._DisableFuncTorch():  # kept tensors must not belong to a `torch.func.grad`
        return bound.numbers(task).to(device, dtype)
