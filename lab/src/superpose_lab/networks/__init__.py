"""The networks of the paper, as plain modules."""

from superpose_lab.networks.mlp import MLP
from superpose_lab.networks.resnet import ResNet18

__all__ = ["MLP", "ResNet18"]
