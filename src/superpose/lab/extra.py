"""The packages of the extra `lab`, and the error where one of them is missing."""

import importlib.util

from superpose.errors import SuperposeError

PACKAGES = {
    "matplotlib": "matplotlib",
    "sklearn": "scikit-learn",
    "PIL": "Pillow",
    "markdown_it": "markdown-it-py",
}
"""Modules and the packages that they come in."""


def require(what: str, *modules: str) -> None:
    """Refuse `what` if one of the modules (all of the extra, if none is named) is not installed.

    >>> require("a figure", "matplotlib")
    """
    missing = [PACKAGES[name] for name in modules or PACKAGES if not installed(name)]
    if missing:
        raise SuperposeError(
            f'{what} needs {", ".join(missing)} (not installed): pip install "superpose[lab]"'
        )


def installed(module: str) -> bool:
    """Tell whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
