"""Layers by pattern: what `skip`, `private_layers` and families for some layers mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from superpose import contexts
from superpose.contexts import Family
from superpose.errors import SuperposeError
from superpose.nn.names import MOST, inside, listed, nearest

FamilyByLayer = Family | dict[str, Family]  # one for all layers, or one for each pattern


def matching(option: str, patterns: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that are one of these, or match one; each of these has to match some.

    >>> matching("skip", ["stem", "*.norm?"], ["stem", "a", "a.norm1", "a.norm2"])
    ('stem', 'a.norm1', 'a.norm2')
    """
    names, found = list(names), dict[str, None]()
    for pattern in patterns:
        matched = [pattern] if pattern in names else [n for n in names if fnmatchcase(n, pattern)]
        if not matched:
            there = _there([name for name in names if name], pattern)
            raise SuperposeError(f"{option}: there is no layer {pattern!r}; {there}")
        found |= dict.fromkeys(matched)
    return tuple(found)


def _there(names: list[str], wanted: str) -> str:
    """The names that there are; if they are many, the outer ones, and those that may be meant."""
    outer = sorted(names, key=lambda name: name.count(".")) if len(names) > MOST else names
    told = f"there are {listed([*map(repr, outer)])}"
    meant = nearest(wanted, names) if len(names) > MOST else []
    if not meant:
        return told
    return f"{told}; the nearest {'is' if len(meant) == 1 else 'are'} {', '.join(map(repr, meant))}"


class LayerFamilies:
    """The family of each layer: that of the first pattern that its name, or what it is in, matches.

    >>> wanted = {"encoder": contexts.Hadamard(), "*": contexts.Binary()}
    >>> families = LayerFamilies(wanted, ["encoder", "encoder.0", "head"])
    >>> families.of("encoder.0"), families.of("head")
    (Hadamard(learnable=False), Binary(learnable=False))
    """

    def __init__(self, wanted: FamilyByLayer, names: Iterable[str]) -> None:
        names = list(names)
        patterns = wanted if isinstance(wanted, dict) else {}
        self.layers = {pattern: matching("family", [pattern], names) for pattern in patterns}
        self.wanted = wanted

    def of(self, layer: str) -> Family:
        """The family of a layer that is bound."""
        if not isinstance(self.wanted, dict):
            return self.wanted
        for pattern, names in self.layers.items():
            if inside(layer, names):
                return self.wanted[pattern]
        raise SuperposeError(
            f"family: no pattern matches layer {layer!r}: add one for it, such as "
            '"*": "binary" at the end'
        )

    def check_used(self, bound: Iterable[str]) -> None:
        """That each pattern matches a layer that is bound."""
        bound = list(bound)
        for pattern, names in self.layers.items():
            if not any(inside(layer, names) for layer in bound):
                there = listed([*map(repr, bound)])
                raise SuperposeError(
                    f"family: {pattern!r} matches no layer that is superposed: name some of {there}"
                )


def family_by_layer(wanted: str | Family | Mapping[str, str | Family]) -> FamilyByLayer:
    """The family of a name, or the families of several, by pattern."""
    if not isinstance(wanted, Mapping):
        return contexts.family(wanted)
    if not wanted:
        raise SuperposeError('family={}: give a family, or patterns, as in {"*": "binary"}')
    found = {pattern: contexts.family(one) for pattern, one in wanted.items()}
    if len({one.complex_valued for one in found.values()}) > 1:
        told = ", ".join(pattern for pattern, one in found.items() if one.complex_valued)
        raise SuperposeError(
            f"family: that of {told} makes a network complex-valued and the others do not: use "
            "'phase', which is complex superposition for a real network"
        )
    return found


def several_families(family: FamilyByLayer) -> list[Family]:
    """All of them."""
    return list(family.values()) if isinstance(family, dict) else [family]
