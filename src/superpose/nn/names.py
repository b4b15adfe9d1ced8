"""Names of layers and of their tensors."""

from collections.abc import Iterable


def joined(layer: str, name: str) -> str:
    """The full name of a layer's tensor; a model that is one layer has no name of its own."""
    return f"{layer}.{name}" if layer else name


def inside(name: str, outer: Iterable[str]) -> bool:
    """Whether a module is one of these, or in one of them."""
    return any(name == one or name.startswith(f"{one}.") for one in outer)
