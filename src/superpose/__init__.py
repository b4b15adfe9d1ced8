"""Many models in one set of weights, each given back by its context."""

import importlib
from typing import TYPE_CHECKING, Any

from superpose import contexts, nn, recognition
from superpose.analysis import crosstalk, plan
from superpose.checkpoint import load, save
from superpose.errors import SuperposeError
from superpose.export import exportable
from superpose.model import Superposed, superpose, unsuperpose
from superpose.nn.selection import same_task
from superpose.pack import Packed, pack, unpack

if TYPE_CHECKING:
    from superpose import lab, learning, serving

__all__ = [
    "Packed",
    "SuperposeError",
    "Superposed",
    "contexts",
    "crosstalk",
    "exportable",
    "lab",
    "learning",
    "load",
    "nn",
    "pack",
    "plan",
    "recognition",
    "same_task",
    "save",
    "serving",
    "superpose",
    "unpack",
    "unsuperpose",
]

LAZY = (
    "lab",
    "learning",
    "serving",
)  # imported on first use, so that `import superpose` stays quick


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return importlib.import_module(f"superpose.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("superpose")
    raise AttributeError(f"module 'superpose' has no attribute {name!r}")
