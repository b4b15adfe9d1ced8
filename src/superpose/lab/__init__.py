"""The paper's lab, apart from the library: data sets, networks, experiments, figures, bench."""

from superpose.lab import data
from superpose.lab.networks import MLP, ResNet18

__all__ = ["MLP", "ResNet18", "data"]
