"""The tensors inside what a network is given and returns: trees, and objects such as caches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, nn.Module)

Rebuild = Callable[[list[Tensor]], Any]


def flatten(value: Any) -> tuple[list[Tensor], list[Any], Rebuild]:
    """The tensors of a value, its other leaves, and how to make it anew of other tensors.

    An object that is no tree, such as the cache of a language model, is copied around its tensors.

    >>> tensors, rest, rebuild = flatten({"x": torch.ones(2), "n": 3})
    >>> rest, rebuild([torch.zeros(2)])
    ([3], {'x': tensor([0., 0.]), 'n': 3})
    """
    leaves, tree = tree_flatten(value)
    found = [leaf if isinstance(leaf, Tensor) else list(_inside(leaf, set())) for leaf in leaves]
    tensors: list[Tensor] = []
    for one in found:
        tensors += [one] if isinstance(one, Tensor) else one
    rest = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]

    def rebuild(new: list[Tensor]) -> Any:
        given = iter(new)
        made: list[Any] = []
        for leaf, one in zip(leaves, found, strict=True):
            if isinstance(one, Tensor):
                made.append(next(given))
            elif one:
                made.append(copy.deepcopy(leaf, {id(tensor): next(given) for tensor in one}))
            else:
                made.append(leaf if isinstance(leaf, PLAIN) else _copied(leaf))
        return tree_unflatten(made, tree)

    return tensors, rest, rebuild


def _inside(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """The tensors of an object that is no tree, each once."""
    if isinstance(value, PLAIN) or callable(value) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list, tuple, set)):
        parts = getattr(value, "__dict__", {}).values()
    for part in parts:
        yield from _inside(part, seen)


def _copied(value: Any) -> Any:
    """A copy, because an empty cache is filled in place; or itself, if it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError):
        return value
