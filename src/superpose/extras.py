"""The packages of the extras, and the error where one of them is missing."""

import importlib.util
import sys

from superpose.errors import SuperposeError

EXTRAS = {
    "serve": {
        "uvicorn": "uvicorn",
        "httptools": "httptools",
        "orjson": "orjson",
        **({} if sys.platform == "win32" else {"uvloop": "uvloop"}),  # there is none for Windows
        "prometheus_client": "prometheus-client",
        "grpc": "grpcio",
        "google.protobuf": "protobuf",
    },
    "ray": {"ray.serve": "ray[serve]"},
}
"""Of each extra, the modules and the packages that they come in."""


def require(what: str, *modules: str, extra: str) -> None:
    """Refuse `what` if one of the modules (all of the extra, if none is named) is not installed.

    >>> require("a tensor", extra="serve")
    """
    packages = EXTRAS[extra]
    missing = [packages[name] for name in modules or packages if not installed(name)]
    if missing:
        raise SuperposeError(
            f'{what} needs {", ".join(missing)} (not installed): pip install "superpose[{extra}]"'
        )


def installed(module: str) -> bool:
    """Tell whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # of a package that is not there, or was hidden
        return False
