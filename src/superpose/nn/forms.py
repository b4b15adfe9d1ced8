"""Which plain layer becomes which superposed one; PyTorch's own classes are declared here."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
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
from superpose.nn.custom import CustomLayer, DeclaredLayer, Keeper, OwnLayer, is_vector
from superpose.nn.experts import EXPERTS
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
from superpose.nn.registry import InputDims, declaration, input_dims, register

PYTORCH: dict[type[nn.Module], type[Layer] | InputDims] = {
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
    nn.RNNCell: {"weight_ih": -1, "weight_hh": -1},
    nn.LSTMCell: {"weight_ih": -1, "weight_hh": -1},
    nn.GRUCell: {"weight_ih": -1, "weight_hh": -1},
    nn.Bilinear: {"weight": -1},  # (outputs, first inputs, second inputs): the second are bound
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
    nn.Embedding: Embedding,
    nn.EmbeddingBag: {},
}
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, torch.jit.ScriptModule)
"""What nothing can be put into, because all that is in them is run or counted."""

for plain, pytorch_form in PYTORCH.items():
    register(plain, pytorch_form)
register(ComplexBatchNorm, SuperposedComplexBatchNorm)
register("transformers.Conv1D", TransposedLinear)  # GPT-2's linear layer
for name, dims in EXPERTS.items():
    register(f"transformers.{name}", dims)


def form(layer: str, module: nn.Module, entire: bool) -> type[Layer] | None:
    """What a layer becomes, which may be private as a whole; None if it is left alone."""
    return (
        _known_form(layer, module, entire)
        or _declared_form(layer, module)
        or _own_form(layer, module, entire)
    )


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
    runs_all = isinstance(module, CONTAINERS) and not isinstance(module, ParametrizationList)
    if (_declared_layer(module) and not is_parametrized(module)) or runs_all:
        return {}
    own = {n: t for n, t in module.named_parameters(recurse=False) if t.is_floating_point()}
    held = {id(tensor) for child in module.children() if own for tensor in child.parameters()}
    return {name: tensor for name, tensor in own.items() if id(tensor) not in held}


def binds_weights(layer: str, module: nn.Module) -> bool:
    """Whether modules of its class have weights that are bound."""
    kind = _declared_layer(module)
    return bool(input_dims(layer, module)) if kind is None else kind.binds_weights


def undeclared(layer: str, module: nn.Module) -> bool:
    """Whether a module has matrices, and it is not known how it uses them.

    One with layers in it is not meant: what it keeps beside them is mostly tables.
    """
    known = _declared_layer(module) or input_dims(layer, module) is not None
    matrices = (not is_vector(tensor) for tensor in module.parameters(recurse=False))
    return not known and _computes_alone(layer, module) and any(matrices)


def makes_weights(layer: str, module: nn.Module) -> bool:
    """Whether what a module keeps is made into the weights of a layer."""
    return "parametrizations" in layer.split(".") or is_parametrized(module)


def _known_form(layer: str, module: nn.Module, entire: bool) -> type[Layer] | None:
    """A layer whose class computes something else than PyTorch's does so with the task's tensors.

    There is none if that cannot be told from its class, or if its weight is not one to be bound.
    """
    found = declaration(module)
    kind = _declared_layer(module)
    if found is None or kind is None or not computes_by_class(module):
        return None
    if issubclass(kind, Embedding) and not entire:
        return None
    custom = not computes_as(module, found.kind)
    if custom and not issubclass(kind, NormLayer) and not _keeps_weight(module):
        return None
    kinds = (CustomLayer, kind) if custom else (kind,)
    taken = _taken(module, found.kind, kinds)
    if taken:
        raise _hidden(layer, module, taken)
    return _made(kinds, module, tuple(module._parameters) if custom else ())


def _declared_form(layer: str, module: nn.Module) -> type[Layer] | None:
    """A module some of whose tensors are bound, by a declaration of their dimensions."""
    dims = input_dims(layer, module)
    if not dims or not computes_by_class(module) or makes_weights(layer, module):
        return None
    bound = [module._parameters.get(name) for name in dims]
    if any(tensor is None or not tensor.is_floating_point() for tensor in bound):
        return None  # made from other tensors, or quantised
    taken = _taken(module, nn.Module, (DeclaredLayer,))
    if taken:
        raise _hidden(layer, module, taken)
    return _made((DeclaredLayer,), module, tuple(module._parameters))


def _own_form(layer: str, module: nn.Module, entire: bool) -> type[Layer] | None:
    """A module of another kind whose vectors are as a norm's, or that is private as a whole."""
    if not _computes_alone(layer, module):
        return None
    if not entire:
        learned = list(module.parameters(recurse=False))
        own = [*learned, *module.buffers(recurse=False)]  # which may be constants, and large
        if _declared_layer(module) or not all(map(is_vector, own)):
            return None
        if not all(tensor.is_floating_point() for tensor in learned):
            return None  # quantised
    taken = _taken(module, nn.Module, (OwnLayer,))
    if taken and entire:
        raise _hidden(layer, module, taken)
    return None if taken else _made((OwnLayer,), module, tuple(module._parameters))


def _computes_alone(layer: str, module: nn.Module) -> bool:
    """Whether a module's class says what it computes, from tensors of its own alone."""
    held = [t for child in module.children() for t in (*child.parameters(), *child.buffers())]
    learns = next(module.parameters(recurse=False), None) is not None
    computes = type(module).forward is not nn.Module.forward and computes_by_class(module)
    alone = learns and computes and not held and not isinstance(module, nn.RNNBase)
    return alone and not makes_weights(layer, module)  # which run whether or not a task is active


def _declared_layer(module: nn.Module) -> type[Layer] | None:
    found = declaration(module)
    return None if found is None or isinstance(found.form, Mapping) else found.form


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
