"""What a layer was before: whether PyTorch computes it, and a class that is still all it was."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from superpose.nn.reading import of_active_task

COMPUTES = ("forward", "_conv_forward")


def computes_as(module: nn.Module, plain: type[nn.Module]) -> bool:
    """Whether a module computes what PyTorch's `plain` does, from weights of its own.

    It does not if a subclass has methods of its own for that.
    """
    own = type(module)
    same = all(getattr(own, name, None) is getattr(plain, name, None) for name in COMPUTES)
    return same and computes_by_class(module)


def computes_by_class(module: nn.Module) -> bool:
    """Whether a module's class says what it computes, from weights of its own.

    It does not if methods for that were set on the module itself, or if its weights are made from
    other tensors (parametrised, pruned).
    """
    attributes = vars(module)
    replaced = any(name in attributes for name in COMPUTES)
    made = any(
        isinstance(value, Tensor) and ("weight" in name or "bias" in name)
        for name, value in attributes.items()
    )
    return not replaced and not made and not is_parametrized(module)


@functools.cache
def layer_class(kinds: tuple[Any, ...], plain: Any, read: tuple[str, ...] = ()) -> Any:
    """The class of a layer that is of these kinds, and a `plain` in all that they leave open.

    Its tensors of the names in `read` are those of the active task.
    """
    if len(kinds) == 1 and issubclass(kinds[0], plain):
        return kinds[0]
    members = {"_made_of": (kinds, plain, read), "__reduce__": _reduce}
    members |= {name: of_active_task(name) for name in read}
    return type(plain.__name__, (*kinds, plain), members)


def made_of(made: Any) -> tuple[Any, ...]:
    """What `layer_class` made a class of: pickles name that, because they cannot name the class."""
    parts: tuple[Any, ...] = vars(made).get("_made_of", ((made,), made))
    return parts


def _reduce(layer: Any) -> tuple[Any, ...]:
    return _empty, made_of(type(layer)), layer.__getstate__()


def _empty(*parts: Any) -> Any:
    made = layer_class(*parts)
    return made.__new__(made)
