"""Layers used by themselves, outside a superposed model: they are told the task in each call."""

from __future__ import annotations

from typing import Any

from torch import nn

from superpose import contexts
from superpose.contexts import Family
from superpose.contexts.base import Drawn
from superpose.errors import SuperposeError


def derived(family: str | Family) -> Family:
    """The family of a layer used by itself, which knows no tasks to learn a context for."""
    chosen = contexts.family(family)
    if isinstance(chosen, Drawn) and chosen.learnable:
        raise SuperposeError(
            f"{type(chosen).__name__}(learnable=True) is learned for each task, which only a "
            "superposed model knows: superpose() a network, or leave learnable out"
        )
    return chosen


def standalone(plain: type[nn.Module], **defaults: Any) -> Any:
    """The constructor of a layer used by itself: the plain layer's arguments, then its key's.

    `family` (a name or a family), `seed` and `layer` (its name) decide its contexts.
    """

    def __init__(  # noqa: N807 (it becomes the method of that name)
        self: Any,
        *arguments: Any,
        family: str | Family = "binary",
        seed: int = 0,
        layer: str = plain.__name__,
        **options: Any,
    ) -> None:
        own = {name: options.pop(name, default) for name, default in defaults.items()}
        plain.__init__(self, *arguments, **options)
        vars(self).update(own)
        self.superpose(plain, layer, derived(family), seed)

    return __init__
