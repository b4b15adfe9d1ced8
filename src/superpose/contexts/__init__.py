"""Families of contexts: how the invertible map C(k) of a layer is made from its key.

>>> a = Phase().context(Key(seed=0, layer="layer", task=1), 4)
>>> b = Phase().context(Key(seed=0, layer="layer", task=2), 4)
>>> import torch
>>> x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
>>> torch.testing.assert_close((a * b).bind(x), a.bind(b.bind(x)))
>>> torch.testing.assert_close((a**-1).bind(a.bind(x)), x)
"""

import dataclasses
from typing import Any

from superpose.contexts.base import Context, Family, PowerOf, ProductOf, stack, with_learning
from superpose.contexts.binary import Binary
from superpose.contexts.complex import Complex, OnePower
from superpose.contexts.compose import LocalMix, mix
from superpose.contexts.hadamard import Hadamard
from superpose.contexts.identity import Identity
from superpose.contexts.layer import LayerContext, cache
from superpose.contexts.permutation import Permutation
from superpose.contexts.phase import Phase
from superpose.contexts.rotation import BlockRotation, Rotation
from superpose.errors import SuperposeError
from superpose.keys import Key

__all__ = [
    "FAMILIES",
    "Binary",
    "BlockRotation",
    "Complex",
    "Context",
    "Family",
    "Hadamard",
    "Identity",
    "Key",
    "LayerContext",
    "LocalMix",
    "OnePower",
    "Permutation",
    "Phase",
    "Rotation",
    "cache",
    "describe",
    "family",
    "from_description",
    "mix",
    "stack",
    "with_learning",
]

FAMILIES: dict[str, type[Family]] = {
    "identity": Identity,
    "binary": Binary,
    "complex": Complex,
    "onepower": OnePower,
    "rotation": Rotation,
    "permutation": Permutation,
    "block-rotation": BlockRotation,
    "phase": Phase,
    "hadamard": Hadamard,
}

COMPOSITIONS: dict[str, type[Family]] = {
    "product": ProductOf,
    "power": PowerOf,
    "local-mix": LocalMix,
}


def family(wanted: str | Family) -> Family:
    """The family of this name, with its default options; a family is given back as it is.

    >>> family("block-rotation")
    BlockRotation(learnable=False, block_size=16)
    """
    if isinstance(wanted, Family):
        return wanted
    if wanted not in FAMILIES:
        raise SuperposeError(f"unknown family {wanted!r}: use one of {', '.join(FAMILIES)}")
    return FAMILIES[wanted]()


def describe(family: Family) -> dict[str, Any]:
    """The family as JSON-ready data.

    >>> describe(LocalMix(Phase(), window=2))["family"]
    {'name': 'phase', 'learnable': False}
    """
    names = {kind: name for name, kind in (FAMILIES | COMPOSITIONS).items()}
    if type(family) not in names:
        raise SuperposeError(f"{family} is not one of this package's families: it cannot be saved")
    options = {field.name: getattr(family, field.name) for field in dataclasses.fields(family)}
    plain = {k: describe(v) if isinstance(v, Family) else v for k, v in options.items()}
    return {"name": names[type(family)], **plain}


def from_description(description: dict[str, Any]) -> Family:
    """The family that `describe` described.

    >>> from_description(describe(Binary() * Phase() ** 2)) == Binary() * Phase() ** 2
    True
    """
    options = dict(description)
    name = options.pop("name", None)
    kinds = FAMILIES | COMPOSITIONS
    if name not in kinds:
        raise SuperposeError(f"unknown family {name!r}: it needs a newer version of superpose")
    for option, value in options.items():
        if isinstance(value, dict):
            options[option] = from_description(value)
        elif isinstance(value, list):
            options[option] = tuple(value)
    return kinds[name](**options)
