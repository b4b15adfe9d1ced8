"""Checks of numbers and of optional packages."""

import importlib.util

from superpose import SuperposeError


def at_least_one(**counts: int) -> None:
    """Refuse a count below 1, by its name.

    >>> at_least_one(tasks=3, steps=0)
    Traceback (most recent call last):
    superpose.errors.SuperposeError: steps=0: must be at least 1
    """
    for name, value in counts.items():
        if value < 1:
            raise SuperposeError(f"{name}={value}: must be at least 1")


def installed(module: str) -> bool:
    """Check that a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
