"""The networks of the paper, as plain modules: superpose them, or bring your own."""

from superpose_lab.networks.mlp import MLP
from superpose_lab.networks.resnet import ResNet18

__all__ = ["MLP", "ResNet18"]
