"""The layers themselves: plain PyTorch layers with a context, or private tensors, for each task."""

from superpose.nn import convert as _convert  # noqa: F401 (it registers the forms of PyTorch's layers)
from superpose.nn.complex import ComplexBatchNorm, Split, SplitReLU
from superpose.nn.convert import add_kind, check_skipped_apart, recognition_layer
from superpose.nn.kinds import InputStatistics, Kind, TaskMean
from superpose.nn.kinds.input_statistics import by_rows
from superpose.nn.layer import Bound, Layer, Met
from superpose.nn.layout import Along, Kernel, Layout
from superpose.nn.names import inside, joined
from superpose.nn.options import Options
from superpose.nn.patterns import family_by_layer, several_families
from superpose.nn.quantised import full, is_base, is_quantised
from superpose.nn.registry import register
from superpose.nn.standalone import (
    GRU,
    LSTM,
    RNN,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Linear,
    MultiheadAttention,
)
from superpose.nn.statistics import Statistics, Usual, as_statistics
from superpose.nn.view import LayerView, View

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Along",
    "Bound",
    "ComplexBatchNorm",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "InputStatistics",
    "Kernel",
    "Kind",
    "Layer",
    "LayerView",
    "Layout",
    "Linear",
    "Met",
    "MultiheadAttention",
    "Options",
    "Split",
    "SplitReLU",
    "Statistics",
    "TaskMean",
    "Usual",
    "View",
    "add_kind",
    "as_statistics",
    "by_rows",
    "check_skipped_apart",
    "family_by_layer",
    "full",
    "inside",
    "is_base",
    "is_quantised",
    "joined",
    "recognition_layer",
    "register",
    "several_families",
]
