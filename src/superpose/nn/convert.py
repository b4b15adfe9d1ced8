"""Conversion of a network's layers, in place: which becomes what, and the way back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from superpose.contexts import Family
from superpose.errors import SuperposeError
from superpose.nn.attention import MultiheadAttention
from superpose.nn.base import merge, split
from superpose.nn.complex import ComplexBatchNorm, SuperposedComplexBatchNorm
from superpose.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvLayer,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from superpose.nn.custom import CustomLayer, OwnLayer, is_vector
from superpose.nn.layer import Layer, joined, pair
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
PRIVATE_MODES = ("per-task", "shared", "none")
CONV_MODES = ("kernel", "channel")


@dataclass
class Conversion:
    """How a model was converted: the options of `superpose` that are not its keys."""

    private: str = "per-task"
    private_layers: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    conv: str = "kernel"
    batch_dim: int | None = None
    base: bool = False  # each layer keeps a base that all tasks share, and superposes the rest
    random_pairing: bool = False  # layers of one shape change places, differently for each task

    def __post_init__(self) -> None:
        """Check what can be checked without the model."""
        self.private_layers, self.skip = tuple(self.private_layers), tuple(self.skip)
        if self.private not in PRIVATE_MODES:
            raise SuperposeError(f"private={self.private!r}: use one of {', '.join(PRIVATE_MODES)}")
        if self.conv not in CONV_MODES:
            raise SuperposeError(f"conv={self.conv!r}: use one of {', '.join(CONV_MODES)}")
        if self.batch_dim not in (None, 0, 1):
            raise SuperposeError(f"batch_dim={self.batch_dim!r}: use 0, 1 or None")


def convert(model: nn.Module, family: Family, seed: int, conversion: Conversion) -> None:
    """Turn the layers of a model into superposed ones and give them their contexts."""
    modules = dict(model.named_modules())
    for option, names in (("skip", conversion.skip), ("private_layers", conversion.private_layers)):
        for name in names:
            if name not in modules:
                known = ", ".join(repr(known) for known in modules if known)
                raise SuperposeError(f"{option}: there is no layer {name!r}; there are {known}")
    skip = conversion.skip
    if conversion.base:
        outside = (*skip, *conversion.private_layers)
        skip = (*skip, *split(model, functools.partial(_takes_base, outside)))
        modules = dict(model.named_modules())
    batch_dims = dict(_batch_dims(modules))
    superposed = 0
    for name, module in modules.items():
        _check_initialised(name, module)
        if inside(name, skip):
            continue
        entire = inside(name, conversion.private_layers)
        kind = _form(name, module, entire)
        if kind is None:
            if isinstance(module, nn.MultiheadAttention):
                skip = (*skip, f"{name}.out_proj")  # its weight is read, it is never called
            if entire and next(module.parameters(recurse=False), None) is not None:
                raise SuperposeError(
                    f"private_layers: {name!r} is a {type(module).__name__}, which cannot be "
                    "private; linear, convolution, attention, recurrent, embedding and norm "
                    "layers can, and modules whose class has a forward and that have no layers in "
                    "them"
                )
            continue
        if conversion.private == "none" and not entire and not issubclass(kind, OwnLayer):
            _strip(module, keep_weight=not issubclass(kind, NormLayer))
        plain, module.__class__ = type(module), kind
        assert isinstance(module, Layer)
        if isinstance(module, ConvLayer):
            module.mode = conversion.conv
        batch_dim = batch_dims.get(name, conversion.batch_dim)
        module.superpose(plain, name, None if entire else family, seed, batch_dim)
        if entire or conversion.private == "per-task":
            module.make_private()
        if not module.contexts and not module.private:
            module.unsuperpose()  # a norm layer with nothing of its own
        superposed += bool(module.contexts) if isinstance(module, Layer) else 0
    if not superposed:
        raise SuperposeError(
            f"{type(model).__name__} has no layer to superpose: it needs at least one linear, "
            "convolution, attention or recurrent layer, or a module of its own with a matrix, that "
            "is not in skip or private_layers, and that was not customised beyond its class"
        )
    if conversion.random_pairing:
        pair((m for m in modules.values() if isinstance(m, Layer) and m.contexts), seed)
    _freeze_templates(modules.values())
    _block_fast_paths(modules, on=False)


def restore(model: nn.Module) -> None:
    """Undo what `convert` did outside the layers."""
    merge(model)
    _block_fast_paths(dict(model.named_modules()), on=True)


@dataclass(frozen=True)
class Summary:
    """Names of tensors by what became of them."""

    superposed: list[str]
    private: list[str]
    shared: list[str]

    def __str__(self) -> str:
        kinds = {
            "superposed": self.superposed,
            "private to each task": self.private,
            "shared by all tasks": self.shared,
        }
        return "\n".join(f"{kind}: {', '.join(names) or 'none'}" for kind, names in kinds.items())


def summarise(model: nn.Module, layers: Iterable[Layer]) -> Summary:
    """Sort the tensors of a superposed model."""
    layers = list(layers)
    superposed = [joined(layer.layer, name) for layer in layers for name in layer.contexts]
    private = [joined(layer.layer, name) for layer in layers for name in layer.private]
    inner = tuple(joined(layer.layer, "private.") for layer in layers)
    rest = [name for name in model.state_dict() if not name.startswith(inner)]
    return Summary(superposed, private, [n for n in rest if n not in {*superposed, *private}])


def _takes_base(outside: Iterable[str], name: str, module: nn.Module) -> bool:
    if inside(name, outside):
        return False
    kind = _form(name, module, entire=False)
    if kind is None or issubclass(kind, NormLayer):
        return False
    if issubclass(kind, OwnLayer) and all(map(is_vector, module.parameters())):
        return False
    if issubclass(kind, (MultiheadAttention, RNN, LSTM, GRU, CustomLayer)):
        raise SuperposeError(
            f"{type(module).__name__} {name!r} is not one linear map, so it cannot keep a base: "
            "name it in private_layers or in skip"
        )
    return True


def inside(name: str, outer: Iterable[str]) -> bool:
    """Whether a module is one of these, or in one of them."""
    return any(name == one or name.startswith(f"{one}.") for one in outer)


def _form(layer: str, module: nn.Module, entire: bool) -> type[Layer] | None:
    """What a layer becomes, which may be private as a whole; None if it is left alone."""
    tables = TABLES if entire else {}
    known = WEIGHTED | _transposed(module) | NORMS | tables
    return _known_form(layer, module, known) or _own_form(layer, module, entire)


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
    made_from = "parametrizations" in layer.split(".")  # a weight, whether or not a task is active
    if not learned or held or not computes or made_from or isinstance(module, nn.RNNBase):
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
    own -= names(plain.__mro__) | set(module._parameters)
    return next((n for n in sorted(own) if hasattr(module, n) and not n.startswith("__")), None)


def _hidden(layer: str, module: nn.Module, name: str) -> SuperposeError:
    """What a layer gets must not hide what it has."""
    return SuperposeError(
        f"{type(module).__name__} {layer!r} already has {name!r}, which a superposed layer needs: "
        "rename it, or name the layer in skip"
    )


def _check_initialised(name: str, module: nn.Module) -> None:
    own = module.parameters(recurse=False)
    if any(isinstance(parameter, UninitializedParameter) for parameter in own):
        raise SuperposeError(f"layer {name!r} is lazy and has no weights yet: run a batch first")


def _batch_dims(modules: dict[str, nn.Module]) -> Iterator[tuple[str, int]]:
    """Where PyTorch's own transformer layers have their rows; attention tells by itself."""
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    stacks = (nn.TransformerEncoder, nn.TransformerDecoder)
    for outer, module in modules.items():
        first: Any = module.layers[0] if isinstance(module, stacks) else module
        if isinstance(first, kinds):
            dim = 0 if first.self_attn.batch_first else 1
            yield from ((name, dim) for name in modules if inside(name, [outer]))
    for name, module in modules.items():
        if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            yield name, 0
            yield f"{name}.out_proj", 0


def _strip(module: nn.Module, keep_weight: bool) -> None:
    """Remove what a task would have to keep for itself: biases, norm scales and statistics."""
    if isinstance(module, nn.RNNBase):
        _strip_recurrent(module)
        return
    for name in list(module._parameters):
        if not keep_weight or "bias" in name:
            module._parameters[name] = None
    for name in [] if keep_weight else list(module._buffers):
        module._buffers[name] = None
    for flag in ("affine", "track_running_stats", "elementwise_affine"):
        if hasattr(module, flag):
            setattr(module, flag, False)


def _strip_recurrent(module: nn.RNNBase) -> None:
    names = [name for name in module._flat_weights_names if name.startswith("bias")]
    for name in names:
        del module._parameters[name]
    module.bias = False
    module._flat_weights_names = [n for n in module._flat_weights_names if n not in names]
    module._all_weights = [[n for n in group if n not in names] for group in module._all_weights]
    module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


def _freeze_templates(modules: Iterable[nn.Module]) -> None:
    """New tasks start from what each has for itself; it learns only if something else uses it."""
    templates: set[nn.Parameter] = set()
    used: set[nn.Parameter] = set()
    for module in modules:
        private = module.private if isinstance(module, Layer) else ()
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            (templates if name in private else used).add(parameter)
    for parameter in templates - used:
        parameter.requires_grad_(False)


def _block_fast_paths(modules: dict[str, nn.Module], on: bool) -> None:
    """PyTorch's fused encoder reads weights without asking the layers, so it must not be taken."""
    for module in modules.values():
        if isinstance(module, nn.TransformerEncoderLayer):
            _set(module, "activation_relu_or_gelu", 0, on)
        elif isinstance(module, nn.TransformerEncoder):
            _set(module, "use_nested_tensor", False, on)


def _set(module: nn.Module, name: str, value: Any, restore: bool) -> None:
    saved = f"_plain_{name}"
    if not restore:
        setattr(module, saved, getattr(module, name))
        setattr(module, name, value)
    elif hasattr(module, saved):
        setattr(module, name, getattr(module, saved))
        delattr(module, saved)
