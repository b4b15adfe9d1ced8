"""The networks of the paper, as plain modules: superpose them, or bring your own."""

from superpose.models.mlp import MLP
from superpose.models.resnet import ResNet18

__all__ = ["MLP", "ResNet18"]
