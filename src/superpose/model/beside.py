"""Tensors that are no task's own and not superposed: what of them learns.

Without a base they are shared by all tasks and learn, as in the plain network. With a base they are
shared and do not learn, or learning one task would change what the others start from, unless
`private_layers` or `learn` names them.
"""

from __future__ import annotations

import warnings

from torch import nn

from superpose.nn.flats import FROZEN
from superpose.nn.layer import Layer
from superpose.nn.names import inside, joined, listed
from superpose.nn.options import Options
from superpose.nn.patterns import matching
from superpose.nn.private import STATE, is_private


def freeze(model: nn.Module, options: Options, warn: bool = True) -> frozenset[str]:
    """Freeze what tasks start from, and, with a base, what they share; give the names."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    starts = {id(layer.stored(name)) for layer in layers for name in layer.private}
    changes = {id(layer.stored(name)) for layer in layers for name in layer.bound}
    bases = {id(layer.base(name)) for layer in layers for name in layer.bound}
    named = list(model.named_parameters(remove_duplicate=False))
    modules = [name for name, _ in model.named_modules()]
    learning = matching("learn", options.learn, [*modules, *(name for name, _ in named)])
    learn = {id(p) for name, p in named if inside(name, learning)}
    own = {joined(layer.path, name) for layer in layers for name in layer.private}
    elsewhere = {id(p) for name, p in named if name not in own}  # tied to what others use
    for name, p in named:
        if name in options.frozen:  # a file may be of a network that was frozen, and this one not
            p.requires_grad_(False)
    held, told = set(), []
    for name, p in named:
        if is_private(name) or not p.requires_grad or id(p) in changes:
            continue
        if options.base and id(p) not in learn:
            held.add(name)
            told += [name] if id(p) not in starts and id(p) not in bases else []
        elif id(p) in starts and id(p) not in elsewhere:
            held.add(name)
    for name, p in named:
        if name in held or (is_private(name) and f"{STATE}.{FROZEN}" in name):
            p.requires_grad_(False)
    if told and warn:
        warnings.warn(
            f"with a base, tensors that all tasks share do not learn: {listed(sorted(told))}. Name "
            "those that should in private_layers, so that each task has its own, or in learn=[…], "
            "so that all tasks change them together",
            stacklevel=4,
        )
    return frozenset(held)
