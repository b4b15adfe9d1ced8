"""The forms of PyTorch's own layers."""

from __future__ import annotations

from torch import nn

from superpose.nn.complex import ComplexBatchNorm
from superpose.nn.forms import norm
from superpose.nn.forms.attention import Attention
from superpose.nn.forms.conv import Conv, TransposedConv
from superpose.nn.forms.linear import Linear, Projection, TransposedLinear
from superpose.nn.forms.recurrent import Recurrent
from superpose.nn.forms.table import Embedding
from superpose.nn.forms.transformers import INPUT_DIMS, NORMS
from superpose.nn.layer import Layer
from superpose.nn.registry import InputDims, register

CELL = {"weight_ih": -1, "weight_hh": -1}
PYTORCH: dict[type[nn.Module], type[Layer] | InputDims] = {
    nn.Linear: Linear,
    nn.modules.linear.NonDynamicallyQuantizableLinear: Projection,
    nn.Conv1d: Conv,
    nn.Conv2d: Conv,
    nn.Conv3d: Conv,
    nn.ConvTranspose1d: TransposedConv,
    nn.ConvTranspose2d: TransposedConv,
    nn.ConvTranspose3d: TransposedConv,
    nn.MultiheadAttention: Attention,
    nn.RNN: Recurrent,
    nn.LSTM: Recurrent,
    nn.GRU: Recurrent,
    nn.RNNCell: CELL,
    nn.LSTMCell: CELL,
    nn.GRUCell: CELL,
    nn.Bilinear: {"weight": -1},  # (outputs, first inputs, second inputs): the second are bound
    nn.BatchNorm1d: norm.BatchNorm,
    nn.BatchNorm2d: norm.BatchNorm,
    nn.BatchNorm3d: norm.BatchNorm,
    nn.SyncBatchNorm: norm.BatchNorm,
    nn.GroupNorm: norm.GroupNorm,
    nn.InstanceNorm1d: norm.InstanceNorm,
    nn.InstanceNorm2d: norm.InstanceNorm,
    nn.InstanceNorm3d: norm.InstanceNorm,
    nn.LayerNorm: norm.LayerNorm,
    nn.RMSNorm: norm.RMSNorm,
    nn.PReLU: norm.Norm,
    nn.Embedding: Embedding,
    nn.EmbeddingBag: {},
    ComplexBatchNorm: norm.ComplexNorm,
}

for plain, form in PYTORCH.items():
    register(plain, form)
register("transformers.Conv1D", TransposedLinear)  # GPT-2's linear layer
for name, dims in INPUT_DIMS.items():
    register(f"transformers.{name}", dims)
for name in NORMS:
    register(f"transformers.{name}", norm.SpreadNorm)
