"""Architectures whose mixed batches are known to be right in the direct way.

A direct pass is right if every layer sees the rows where it expects them, and if no row is chosen,
sorted or gathered by the values of the batch. A test runs each of these, with such values too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from superpose.nn.layer import Layer

if TYPE_CHECKING:
    from superpose.model.model import Superposed

ROW_BY_ROW = (
    nn.Identity, nn.Sequential, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU,
    nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus,
    nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid,
    nn.Tanhshrink, nn.Threshold, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout, nn.FeatureAlphaDropout,
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
    nn.LPPool1d, nn.LPPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    nn.Upsample, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.LocalResponseNorm,
    nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d,
    nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d, nn.ReplicationPad1d,
    nn.ReplicationPad2d, nn.ReplicationPad3d, nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d,
)  # fmt: skip
"""PyTorch's modules that compute each row by itself, with the rows first."""

TRANSFORMERS: frozenset[str] = frozenset()
"""Classes of `transformers`, by name."""


def declared_way(model: Superposed) -> str:
    """Direct, if that is declared for the architecture, else grouped."""
    found: str | None = model.__dict__.get("_way")
    if found is None:
        found = model.__dict__["_way"] = "direct" if _is_direct(model) else "grouped"
    return found


def _is_direct(model: Superposed) -> bool:
    plain = type(model)._plain
    if plain.__module__.partition(".")[0] == "transformers":
        return plain.__name__ in TRANSFORMERS and model.superposition.options.batch_dim is None
    root: type[nn.Module] = model.plain_class if isinstance(model, Layer) else plain
    return model.superposition.options.batch_dim in (None, 0) and all(
        _keeps_rows(module, root if module is model else type(module))
        for name, module in model.named_modules()
        if not name.startswith("private_state")
    )


def _keeps_rows(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module gives, for rows that come first, rows that come first, each by itself."""
    if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
        return False
    if isinstance(module, Layer):
        return module.row_dim in (None, 0) and module.plain_class in KNOWN
    if isinstance(module, nn.ParameterDict):  # bases
        return True
    if kind is nn.Flatten:
        return bool(module.start_dim > 0)  # type: ignore[operator]
    if kind in (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU, nn.Unflatten):
        return isinstance(module.dim, int) and module.dim != 0
    return kind in ROW_BY_ROW or kind in TABLES


KNOWN = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d,
    nn.ConvTranspose3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.LayerNorm,
    nn.RMSNorm, nn.PReLU, nn.Embedding,
)  # fmt: skip
TABLES = (nn.Embedding,)
