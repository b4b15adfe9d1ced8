"""The layers themselves: plain PyTorch layers with a context, or private tensors, for each task."""

from superpose.nn.attention import MultiheadAttention
from superpose.nn.complex import (
    ComplexBatchNorm,
    ComplexConv2d,
    ComplexLinear,
    Split,
    SplitReLU,
)
from superpose.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from superpose.nn.layer import Layer
from superpose.nn.linear import Embedding, Linear
from superpose.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
    SyncBatchNorm,
)
from superpose.nn.quantised import is_base
from superpose.nn.recurrent import GRU, LSTM, RNN
from superpose.nn.registry import register
from superpose.nn.selection import Selection
from superpose.nn.statistics import Statistics

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "ComplexBatchNorm",
    "ComplexConv2d",
    "ComplexLinear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Embedding",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "Layer",
    "LayerNorm",
    "Linear",
    "MultiheadAttention",
    "RMSNorm",
    "Selection",
    "Split",
    "SplitReLU",
    "Statistics",
    "SyncBatchNorm",
    "is_base",
    "register",
]
