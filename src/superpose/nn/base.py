"""A layer beside its base: y = W₀ x + W C(k) x, for models that differ little from one another."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from superpose.errors import SuperposeError

BASE, CHANGE = "base", "change"


class WithBase(nn.Module):
    """What all tasks have in common, which no context binds, plus what tells them apart."""

    base: Any
    change: Any

    def __init__(self, base: nn.Module, change: nn.Module) -> None:
        super().__init__()
        self.base, self.change = base, change

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """The sum of both; the bias is on the side of the change."""
        return self.base(*inputs, **options) + self.change(*inputs, **options)


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
        base.bias = None
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
