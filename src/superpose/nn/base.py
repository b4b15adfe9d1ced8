"""A layer beside its base: y = W₀ x + W C(k) x, for models that differ little from one another."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.nn.rows import Unread

BASE, CHANGE = "base", "change"


class WithBase(nn.Module):
    """What all tasks have in common, which no context binds, plus what tells them apart.

    What a network asks of the layer, beside calling it, is answered by the change, as it was before
    it had a base.
    """

    base: Any
    change: Any

    def __init__(self, base: nn.Module, change: nn.Module) -> None:
        super().__init__()
        self.base, self.change = base, change

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """The sum of both; the bias is on the side of the change."""
        return self.base(*inputs, **options) + self.change(*inputs, **options)

    @property
    def weight(self) -> Tensor:
        """W₀ + W C(k) of the active task."""
        own: Tensor = self.change.weight
        return own if isinstance(own, Unread) else self.base.weight + own

    def __getattr__(self, name: str) -> Any:
        """Bias, stride, number of features."""
        parts = vars(self).get("_modules", {})
        known = name in parts or CHANGE not in parts
        return super().__getattr__(name) if known else getattr(parts[CHANGE], name)


def split(model: nn.Module, wanted: Callable[[str, nn.Module], bool]) -> list[str]:
    """Put a base, without bias, beside each wanted layer, in place; the names of the bases."""
    found = [(name, module) for name, module in model.named_modules() if wanted(name, module)]
    for name, layer in found:
        if not name:
            raise SuperposeError(
                f"{type(layer).__name__} is one layer and has no room for a base: put it inside a "
                "module of its own"
            )
        base: Any = copy.deepcopy(layer)
        bias, base.bias = base.bias, None
        if not isinstance(base, (nn.Linear, nn.modules.conv._ConvNd)):  # GPT-2's adds one always
            del base.bias
            base.register_buffer("bias", torch.zeros_like(bias), persistent=False)
        base.requires_grad_(False)
        model.set_submodule(name, WithBase(base, layer))
    return [f"{name}.{BASE}" for name, _ in found]


def merge(model: nn.Module) -> None:
    """Undo `split`, in place: plain layers of the weights W₀ + W."""
    for name, pair in list(_pairs(model)):
        trained = pair.change.weight.requires_grad
        weight = (pair.base.weight + pair.change.weight).detach()
        pair.change.weight = nn.Parameter(weight, trained)
        model.set_submodule(name, pair.change)


def _pairs(model: nn.Module) -> Iterator[tuple[str, WithBase]]:
    for name, module in model.named_modules():
        if isinstance(module, WithBase):
            yield name, module


def plain_name(layer: str) -> str:
    """The name, in the plain model, of a layer that may have a base beside it.

    >>> plain_name("encoder.0.change"), plain_name("encoder.0")
    ('encoder.0', 'encoder.0')
    """
    return layer.removesuffix(f".{CHANGE}")
