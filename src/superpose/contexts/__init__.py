"""Families of contexts: how the invertible map C(k) of a layer is made from its key.

>>> a = Phase().context(Key(seed=0, layer="layer", task=1), 4)
>>> b = Phase().context(Key(seed=0, layer="layer", task=2), 4)
>>> import torch
>>> x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
>>> torch.testing.assert_close((a * b).bind(x), a.bind(b.bind(x)))
>>> torch.testing.assert_close((a**-1).bind(a.bind(x)), x)
"""

import dataclasses
import inspect
from typing import Any

from superpose.contexts.base import Context, Drawn, Family, PowerOf, ProductOf, stack, with_learning
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
    "Drawn",
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
    "register",
    "stack",
    "with_learning",
]

FAMILIES: dict[str, type[Family]] = {}
"""Those that a name is enough for."""

COMPOSED: dict[str, type[Family]] = {}
"""Those that need options, such as the families that they are made of."""


def register(name: str, kind: type[Family]) -> None:
    """Give a family a name: `superpose`, `pack` and the command line take it, files keep it.

    `kind` is a dataclass, a subclass of `Family`, or of `Drawn` if its numbers can be learned.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Halves(Binary):
    ...     def draw(self, key, dim):
    ...         return super().draw(Key(key.seed, f"{key.layer}:halves", key.task), dim)
    >>> register("halves", Halves)
    >>> family("halves")
    Halves(learnable=False)
    >>> _ = FAMILIES.pop("halves")  # as if nothing had happened
    """
    if not isinstance(name, str) or not name:
        raise SuperposeError(f"{name!r} cannot name a family: use a text that is not empty")
    if not (isinstance(kind, type) and issubclass(kind, Family)) or inspect.isabstract(kind):
        raise SuperposeError(
            f"{kind!r} is no family: register a class with all the methods of sp.contexts.Family"
        )
    if "__dataclass_params__" not in vars(kind):
        raise SuperposeError(
            f"{kind.__name__} is no dataclass: decorate it, @dataclass(frozen=True)"
        )
    for other, its in (FAMILIES | COMPOSED).items():
        again = (its.__module__, its.__qualname__) == (kind.__module__, kind.__qualname__)
        if (other == name) != again:  # a class defined again, as in a notebook, takes its place
            raise SuperposeError(
                f"the family {its.__name__} is called {other!r} already: choose another name, or "
                "another class"
            )
    (COMPOSED if _needs_options(kind) else FAMILIES)[name] = kind


def _needs_options(kind: type[Family]) -> bool:
    missing = dataclasses.MISSING
    fields = [field for field in dataclasses.fields(kind) if field.init]
    return any(f.default is missing and f.default_factory is missing for f in fields)


register("identity", Identity)
register("binary", Binary)
register("complex", Complex)
register("onepower", OnePower)
register("rotation", Rotation)
register("permutation", Permutation)
register("block-rotation", BlockRotation)
register("phase", Phase)
register("hadamard", Hadamard)
register("product", ProductOf)
register("power", PowerOf)
register("local-mix", LocalMix)


def family(wanted: str | Family) -> Family:
    """The family of this name, with its default options; a family is given back as it is.

    >>> family("block-rotation")
    BlockRotation(learnable=False, block_size=16)
    """
    if isinstance(wanted, Family):
        return wanted
    if not isinstance(wanted, str):
        raise SuperposeError(f"{wanted!r} is no family: give one, or its name, such as 'binary'")
    if wanted in COMPOSED:
        made = COMPOSED[wanted].__name__
        raise SuperposeError(f"the family {wanted!r} needs options: give {made}(…) itself")
    if "+" in wanted:
        raise SuperposeError(
            f"{wanted!r} is a method of sp.learning, a family and hooks: give it to "
            f"sp.learning.train, and the family alone, {wanted.split('+')[0]!r}, here"
        )
    if wanted not in FAMILIES:
        raise SuperposeError(
            f"unknown family {wanted!r}: use one of {', '.join(FAMILIES)}, or name one of your "
            "own with sp.contexts.register"
        )
    return FAMILIES[wanted]()


def describe(family: Family) -> dict[str, Any]:
    """The family as JSON-ready data.

    >>> describe(LocalMix(Phase(), window=2))["family"]
    {'name': 'phase', 'learnable': False}
    """
    names = {kind: name for name, kind in (FAMILIES | COMPOSED).items()}
    kind = type(family)
    if kind not in names:
        raise SuperposeError(
            f"{family} has no name, so it cannot be saved: give it one, as in "
            f"sp.contexts.register({kind.__name__.lower()!r}, {kind.__name__})"
        )
    options = {field.name: getattr(family, field.name) for field in dataclasses.fields(family)}
    plain = {k: describe(v) if isinstance(v, Family) else v for k, v in options.items()}
    return {"name": names[kind], **plain}


def from_description(description: dict[str, Any]) -> Family:
    """The family that `describe` described.

    >>> from_description(describe(Binary() * Phase() ** 2)) == Binary() * Phase() ** 2
    True
    """
    options = dict(description)
    name = options.pop("name", None)
    kinds = FAMILIES | COMPOSED
    if name not in kinds:
        raise SuperposeError(
            f"the family {name!r} is not known here: call sp.contexts.register({name!r}, …) with "
            "its class first, or upgrade superpose"
        )
    for option, value in options.items():
        if isinstance(value, dict):
            options[option] = from_description(value)
        elif isinstance(value, list):
            options[option] = tuple(value)
    known = {field.name for field in dataclasses.fields(kinds[name]) if field.init}
    if unknown := options.keys() - known:
        raise SuperposeError(
            f"{kinds[name].__name__}, registered here as {name!r}, has no {sorted(unknown)[0]!r}: "
            "register the class that it was saved with"
        )
    return kinds[name](**options)
