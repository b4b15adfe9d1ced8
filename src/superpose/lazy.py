"""Public names that are imported on first use: `superpose --help` does not wait for PyTorch."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562): `homes` has the module of each name.

    >>> on_first_use("superpose", {"pack": "superpose.packing"})("pack")  # doctest: +ELLIPSIS
    <function pack at ...>
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 (so tracebacks say what it is)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: Any = import_module(homes[name])
        if homes[name] != f"{package}.{name}":
            found = getattr(found, name)
        setattr(sys.modules[package], name, found)  # found without this function from now on
        return found

    return __getattr__
