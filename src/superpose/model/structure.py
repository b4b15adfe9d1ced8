"""The tensors inside what a network is given and returns: trees, and objects such as caches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

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
    seen: set[int] = set()
    found = [leaf if isinstance(leaf, Tensor) else list(_inside(leaf, seen)) for leaf in leaves]
    tensors: list[Tensor] = []
    for one in found:
        tensors += [one] if isinstance(one, Tensor) else one
    rest = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]

    def rebuild(new: list[Tensor]) -> Any:
        given = iter(new)
        made: list[Any] = []
        copied: dict[int, Any] = {}  # so that one object, found twice, stays one
        for leaf, one in zip(leaves, found, strict=True):
            if isinstance(one, Tensor):
                made.append(next(given))
            else:
                copied |= {id(tensor): next(given) for tensor in one}
                made.append(leaf if isinstance(leaf, PLAIN) else _copied(leaf, copied))
        return tree_unflatten(made, tree)

    return tensors, rest, rebuild


def in_tree(value: Any) -> list[bool]:
    """For each tensor that `flatten` finds, whether it is in the tree, not inside an object."""
    seen: set[int] = set()
    found: list[bool] = []
    for leaf in tree_leaves(value):
        alone = isinstance(leaf, Tensor)
        found += [True] if alone else [False] * len(list(_inside(leaf, seen)))
    return found


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a tree, without those inside objects such as caches."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def objects(value: Any) -> list[Any]:
    """The leaves that are no tensors and that a pass may write to, such as caches."""
    return [
        x for x in tree_leaves(value) if not isinstance(x, (Tensor, *PLAIN)) and not callable(x)
    ]


def write(old: Any, new: Any) -> None:
    """Let an object be as its copy is, if their tensors differ."""
    before, after = list(_inside(old, set())), list(_inside(new, set()))
    same = len(before) == len(after) and all(map(torch.equal, before, after))
    if not same and hasattr(old, "__dict__"):
        vars(old).clear()
        vars(old).update(vars(new))


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


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy, because a cache is filled in place; or itself, if it cannot be copied."""
    try:
        return copy.deepcopy(value, memo)
    except (TypeError, RuntimeError):
        return value
