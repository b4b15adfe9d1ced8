"""The paper's lab, apart from the library: data sets, networks, experiments, figures, bench."""

from typing import TYPE_CHECKING

from superpose.lazy import on_first_use

if TYPE_CHECKING:
    from superpose.lab import data
    from superpose.lab.networks import MLP, ResNet18

__all__ = ["MLP", "ResNet18", "data"]

__getattr__ = on_first_use(
    __name__,
    {
        "MLP": "superpose.lab.networks",
        "ResNet18": "superpose.lab.networks",
        "data": "superpose.lab.data",
    },
)
