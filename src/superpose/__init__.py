"""Many models in one set of weights, each given back by its context."""

from typing import TYPE_CHECKING, Any

from superpose.errors import SuperposeError
from superpose.lazy import on_first_use

if TYPE_CHECKING:
    from superpose import contexts, learning, nn, packing, recognition, serving
    from superpose.analysis import crosstalk, plan
    from superpose.export import exportable
    from superpose.files import load, save
    from superpose.model import Superposed, agree, check_mixed, superpose, unsuperpose
    from superpose.nn.view import same_task
    from superpose.packing import Packed, pack, unpack

__all__ = [
    "Packed",
    "SuperposeError",
    "Superposed",
    "agree",
    "check_mixed",
    "contexts",
    "crosstalk",
    "exportable",
    "learning",
    "load",
    "nn",
    "pack",
    "packing",
    "plan",
    "recognition",
    "same_task",
    "save",
    "serving",
    "superpose",
    "unpack",
    "unsuperpose",
]

MODULES = ("analysis", "cost", "export", "functional", "keys", "model", "precision")
"""Modules with further names for those who build on the library."""

_public = on_first_use(
    __name__,
    {
        "Packed": "superpose.packing",
        "Superposed": "superpose.model",
        **{name: f"superpose.{name}" for name in MODULES},
        "agree": "superpose.model",
        "check_mixed": "superpose.model",
        "contexts": "superpose.contexts",
        "crosstalk": "superpose.analysis",
        "exportable": "superpose.export",
        "learning": "superpose.learning",
        "load": "superpose.files",
        "nn": "superpose.nn",
        "pack": "superpose.packing",
        "packing": "superpose.packing",
        "plan": "superpose.analysis",
        "recognition": "superpose.recognition",
        "same_task": "superpose.nn.view",
        "save": "superpose.files",
        "serving": "superpose.serving",
        "superpose": "superpose.model",
        "unpack": "superpose.packing",
        "unsuperpose": "superpose.model",
    },
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("superpose")
    return _public(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
