"""Names of layers and of their tensors."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from heapq import nlargest

MOST = 10  # names that are listed
ALIKE = 0.7  # of the letters, for a name to be told as one that may be meant
NEAREST = 3  # of these


def listed(names: Sequence[str]) -> str:
    """Some ten of the names, and how many more there are.

    >>> listed(["a", "b"])
    'a, b'
    >>> listed([*"abcdefghijkl"])
    'a, b, c, d, e, f, g, h, i, j … and 2 more'
    """
    if len(names) <= MOST:
        return ", ".join(names)
    return f"{', '.join(names[:MOST])} … and {len(names) - MOST} more"


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Names that may have been meant: as a whole, or by their last part, they are spelt alike.

    >>> nearest("*.encodr", ["net", "net.encoder", "net.head"])
    ['net.encoder']
    """
    matcher = SequenceMatcher(None, "", name)  # keeps what it knows of the second one

    def alike(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.ratio()

    def alike_last(other: str) -> float:
        return SequenceMatcher(None, _last(other), _last(name)).ratio()

    found = {other: max(alike(other), alike_last(other)) for other in names}
    likely = [other for other in found if found[other] >= ALIKE]
    return nlargest(NEAREST, likely, key=lambda other: found[other])


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def joined(layer: str, name: str) -> str:
    """The full name of a layer's tensor; a model that is one layer has no name of its own."""
    return f"{layer}.{name}" if layer else name


def inside(name: str, outer: Iterable[str]) -> bool:
    """Whether a module is one of these, or in one of them."""
    return any(name == one or name.startswith(f"{one}.") for one in outer)
