"""Architectures whose mixed batches are known to be right in the direct way.

A direct pass is right if every layer sees the rows where it expects them, and if no row is chosen,
sorted or gathered by the values of the batch. A test runs each of these, with such values too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
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

HEADS = {
    "Albert Bert Camembert DistilBert Electra MPNet Roberta XLMRoberta": (
        "Model ForMaskedLM ForQuestionAnswering ForSequenceClassification ForTokenClassification"
    ),
    "ModernBert": "Model ForQuestionAnswering ForSequenceClassification ForTokenClassification",
    "Bloom Falcon GPTNeo GPTNeoX Llama Mistral Qwen2 Qwen3": (
        "Model ForCausalLM ForQuestionAnswering ForSequenceClassification ForTokenClassification"
    ),
    "Gemma Gemma2 Phi Phi3": "Model ForCausalLM ForSequenceClassification ForTokenClassification",
    "GPTJ": "Model ForCausalLM ForQuestionAnswering ForSequenceClassification",
    "GPTBigCode": "Model ForCausalLM ForSequenceClassification ForTokenClassification",
    "GPT2": (
        "Model LMHeadModel ForQuestionAnswering ForSequenceClassification ForTokenClassification"
    ),
    "T5": "Model EncoderModel ForConditionalGeneration ForQuestionAnswering ForTokenClassification",
    "Bart": "Model ForCausalLM ForConditionalGeneration ForQuestionAnswering",
    "M2M100": "Model ForConditionalGeneration",
    "Whisper": "Model ForAudioClassification ForConditionalGeneration",
    "Beit ConvNext ConvNextV2 DeiT Dinov2 ResNet ViT": "Model ForImageClassification",
    "CLIP Siglip": "ForImageClassification",
    "CLIPText CLIPVision": "Model ModelWithProjection",
    "SiglipText SiglipVision": "Model",
    "Hubert": "Model ForCTC ForSequenceClassification",
    "Wav2Vec2": "Model ForAudioFrameClassification ForCTC ForSequenceClassification",
}
TRANSFORMERS = frozenset(
    family + head
    for families, heads in HEADS.items()
    for family in families.split()
    for head in heads.split()
)
"""Classes of `transformers`, by name. Not among them: experts, to which tokens of all rows are
sorted (Mixtral); heads that pick tokens by their labels (`ModernBertForMaskedLM`); layers that are
given all tokens at once (OPT), windows (Swin) or positions (DeBERTa); weights that are read without
calling their layer (Mamba, WavLM); rows that speak to each other (`CLIPModel`)."""

LOOKED_UP = ("Bart", "MPNet", "T5", "Whisper")
"""Families that look up a table at positions, not at rows: direct if tables are shared."""

ATTENDING = (
    nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer,
    nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer,
)  # fmt: skip
"""PyTorch's modules that are a model by themselves, with the rows where they document them."""

PLAIN = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d,
    nn.ConvTranspose3d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.PReLU, nn.Embedding,
)  # fmt: skip
"""Layers that keep rows apart as they are, where they are skipped or shared, too."""

SUPERPOSED = (
    *PLAIN, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


def declared_way(model: Superposed) -> str:
    """Direct, if that is declared for the architecture, else grouped."""
    found: str | None = model.__dict__.get("_way")
    if found is None:
        found = model.__dict__["_way"] = "direct" if _is_direct(model) else "grouped"
    return found


def _is_direct(model: Superposed) -> bool:
    plain = type(model)._plain
    root: type[nn.Module] = model.plain_class if isinstance(model, Layer) else plain
    kinds = {
        module: root if module is model else _kind(module)
        for name, module in model.named_modules()
        if not name.startswith("private_state")
        and not isinstance(module, nn.ParameterDict)  # bases
    }
    if any("forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in kinds):
        return False
    where = model.superposition.options.batch_dim
    if plain.__module__.partition(".")[0] == "transformers":
        return where is None and plain.__name__ in TRANSFORMERS and _is_as_declared(kinds, plain)
    if root in ATTENDING:
        return where is None and all(_attends(module, kind) for module, kind in kinds.items())
    return where in (None, 0) and all(_keeps_rows(module, kind) for module, kind in kinds.items())


def _kind(module: nn.Module) -> type[nn.Module]:
    return module.plain_class if isinstance(module, Layer) else type(module)


def _is_as_declared(kinds: dict[nn.Module, type[nn.Module]], plain: type[nn.Module]) -> bool:
    """Whether nothing of another package was put into a network of `transformers`."""
    tables = any(
        isinstance(m, Layer) and issubclass(kind, nn.Embedding) for m, kind in kinds.items()
    )
    if tables and plain.__name__.startswith(LOOKED_UP):
        return False
    return all(
        kind.__module__.partition(".")[0] in ("torch", "transformers") for kind in kinds.values()
    )


def _attends(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a part of PyTorch's transformer is as PyTorch has it."""
    if kind in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        return module.activation in (F.relu, F.gelu) or type(module.activation) in ROW_BY_ROW
    if kind is nn.TransformerEncoder:  # its fused pass, without gradients, writes zeros to padding
        return not module.use_nested_tensor
    inside = (*ATTENDING, nn.ModuleList, nn.modules.linear.NonDynamicallyQuantizableLinear)
    return kind in inside or kind in SUPERPOSED or kind in ROW_BY_ROW


def _keeps_rows(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module gives, for rows that come first, rows that come first, each by itself."""
    if isinstance(module, Layer):
        return module.row_dim in (None, 0) and kind in SUPERPOSED
    if kind is nn.Flatten:
        return bool(module.start_dim > 0)  # type: ignore[operator]
    if kind in (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU, nn.Unflatten):
        return isinstance(module.dim, int) and module.dim != 0
    return kind in ROW_BY_ROW or kind in PLAIN
