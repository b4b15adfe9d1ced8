"""Which plain layer becomes which superposed one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from superpose.errors import SuperposeError
from superpose.nn.attention import MultiheadAttention
from superpose.nn.complex import ComplexBatchNorm, SuperposedComplexBatchNorm
from superpose.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from superpose.nn.custom import CustomLayer, Keeper, OwnLayer, is_vector
from superpose.nn.layer import Layer
from superpose.nn.linear import Embedding, Linear, TransposedLinear
from superpose.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    NormLayer,
    RMSNorm,
    SyncBatchNorm,
)
from superpose.nn.plain import computes_as, computes_by_class, layer_class
from superpose.nn.recurrent import GRU, LSTM, RNN

WEIGHTED: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: Linear,
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
    nn.MultiheadAttention: MultiheadAttention,
    nn.RNN: RNN,
    nn.LSTM: LSTM,
    nn.GRU: GRU,
}
NORMS: dict[type[nn.Module], type[Layer]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
    nn.SyncBatchNorm: SyncBatchNorm,
    nn.GroupNorm: GroupNorm,
    nn.InstanceNorm1d: InstanceNorm1d,
    nn.InstanceNorm2d: InstanceNorm2d,
    nn.InstanceNorm3d: InstanceNorm3d,
    nn.LayerNorm: LayerNorm,
    nn.RMSNorm: RMSNorm,
    ComplexBatchNorm: SuperposedComplexBatchNorm,
}
TABLES: dict[type[nn.Module], type[Layer]] = {nn.Embedding: Embedding}
LOOK_UPS = (nn.Embedding, nn.EmbeddingBag)
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, torch.jit.ScriptModule)
"""What nothing can be put into, because all that is in them is run or counted."""


def form(layer: str, module: nn.Module, entire: bool) -> type[Layer] | None:
    """What a layer becomes, which may be private as a whole; None if it is left alone."""
    tables = TABLES if entire else {}
    known = WEIGHTED | _transposed(module) | NORMS | tables
    return _known_form(layer, module, known) or _own_form(layer, module, entire)


def keeper_form(layer: str, module: nn.Module, asked: bool) -> type[Layer] | None:
    """What a module of no such form becomes, so that tasks can have tensors that it keeps."""
    names = kept(module)
    taken = _taken(module, nn.Module, (Keeper,)) if names else None
    if taken and asked:
        raise _hidden(layer, module, taken)
    if taken:
        told = f"{_hidden(layer, module, taken)}; its own tensors stay shared by all tasks"
        warnings.warn(told, stacklevel=6)
    return None if taken or not names else _made((Keeper,), module, tuple(names))


def kept(module: nn.Module) -> dict[str, nn.Parameter]:
    """The tensors that a module of no such form keeps, and none of the layers in it."""
    known = isinstance(module, (*WEIGHTED, *NORMS, *LOOK_UPS)) or _transposed(module)
    runs_all = isinstance(module, CONTAINERS) and not isinstance(module, ParametrizationList)
    if (known and not is_parametrized(module)) or runs_all:
        return {}
    own = {n: t for n, t in module.named_parameters(recurse=False) if t.is_floating_point()}
    held = {id(tensor) for child in module.children() if own for tensor in child.parameters()}
    return {name: tensor for name, tensor in own.items() if id(tensor) not in held}


def makes_weights(layer: str, module: nn.Module) -> bool:
    """Whether what a module keeps is made into the weights of a layer."""
    return "parametrizations" in layer.split(".") or is_parametrized(module)


def _known_form(
    layer: str, module: nn.Module, forms: dict[type[nn.Module], type[Layer]]
) -> type[Layer] | None:
    """A layer whose class computes something else than PyTorch's does so with the task's tensors.

    There is none if that cannot be told from its class, or if its weight is not one to be bound.
    """
    for plain, kind in forms.items():
        if not isinstance(module, plain) or not computes_by_class(module):
            continue
        custom = not computes_as(module, plain)
        if not custom or issubclass(kind, NormLayer) or _keeps_weight(module):
            kinds = (CustomLayer, kind) if custom else (kind,)
            taken = _taken(module, plain, kinds)
            if taken:
                raise _hidden(layer, module, taken)
            return _made(kinds, module, tuple(module._parameters) if custom else ())
    return None


def _own_form(layer: str, module: nn.Module, entire: bool) -> type[Layer] | None:
    """A module of another kind, whose class says what it computes from tensors of its own alone."""
    learned = list(module.parameters(recurse=False))
    held = [t for child in module.children() for t in (*child.parameters(), *child.buffers())]
    computes = type(module).forward is not nn.Module.forward and computes_by_class(module)
    if not learned or held or not computes or isinstance(module, nn.RNNBase):
        return None
    if makes_weights(layer, module):  # whether or not a task is active
        return None
    if not entire:
        numbers = all(tensor.is_floating_point() for tensor in learned)  # quantised ones are not
        own = [*learned, *module.buffers(recurse=False)]
        matrices = any(not is_vector(tensor) for tensor in learned)
        if isinstance(module, (*NORMS, *LOOK_UPS)) or not numbers:
            return None
        if not matrices and not all(is_vector(tensor) for tensor in own):
            return None  # its buffers may be constants, and large
    taken = _taken(module, nn.Module, (OwnLayer,))
    if taken and entire:
        raise _hidden(layer, module, taken)
    return None if taken else _made((OwnLayer,), module, tuple(module._parameters))


def _made(kinds: tuple[type[Layer], ...], module: Any, read: tuple[str, ...]) -> type[Layer]:
    own: Any = type(module)
    made: type[Layer] = layer_class(kinds, own, read)
    return made


def _keeps_weight(module: Any) -> bool:
    """Whether the weight is of numbers, in PyTorch's shape: quantised ones are not."""
    if isinstance(module, nn.Linear):
        shape: tuple[int, ...] = (module.out_features, module.in_features)
    elif isinstance(module, nn.modules.conv._ConvNd):
        sides = (module.out_channels, module.in_channels)
        first, second = reversed(sides) if module.transposed else sides
        shape = (first, second // module.groups, *module.kernel_size)
    else:
        return False
    weight = module._parameters.get("weight")
    return weight is not None and weight.is_floating_point() and weight.shape == shape


def _transposed(module: nn.Module) -> dict[type[nn.Module], type[Layer]]:
    """GPT-2's linear layer, known by its name: `transformers` need not be installed."""
    kinds = [kind for kind in type(module).__mro__ if kind.__name__ == "Conv1D"]
    return {k: TransposedLinear for k in kinds if k.__module__.startswith("transformers.")}


def _taken(module: nn.Module, plain: type, kinds: Iterable[type[Layer]]) -> str | None:
    """A name that a module has, and that it would get."""

    def names(classes: Iterable[type]) -> set[str]:
        return {n for one in classes for n in (*vars(one), *inspect.get_annotations(one))}

    own = names(one for kind in kinds for one in kind.__mro__ if issubclass(one, Layer))
    own -= names(plain.__mro__) | {"weight", "bias"}  # which are the same, of the active task
    return next((n for n in sorted(own) if hasattr(module, n) and not n.startswith("__")), None)


def _hidden(layer: str, module: nn.Module, name: str) -> SuperposeError:
    """What a layer gets must not hide what it has."""
    return SuperposeError(
        f"{type(module).__name__} {layer!r} already has {name!r}, which a superposed layer needs: "
        "rename it, or name the layer in skip"
    )
