"""Conversion of a network's layers, in place, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import inf
from numbers import Integral
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from superpose.errors import SuperposeError
from superpose.nn.additions import UP, add_rank
from superpose.nn.centring import ROWS, TASK, add_mean
from superpose.nn.complex import ComplexBatchNorm
from superpose.nn.conv import ConvLayer
from superpose.nn.custom import DeclaredLayer, Keeper, OwnLayer, is_vector
from superpose.nn.flat import Part
from superpose.nn.forms import (
    form,
    keeper_form,
    kept,
    makes_weights,
)
from superpose.nn.layer import Binding, Layer
from superpose.nn.leftovers import check_converted
from superpose.nn.names import inside, joined
from superpose.nn.norm import NormLayer
from superpose.nn.observing import keep_statistics
from superpose.nn.pairing import pair
from superpose.nn.patterns import FamilyByLayer, LayerFamilies, matching
from superpose.nn.private import is_private
from superpose.nn.registry import input_dims
from superpose.nn.statistics import Statistics, as_statistics

PRIVATE_MODES = ("per-task", "shared", "none")
CONV_MODES = ("kernel", "channel")
CENTRES = (TASK, ROWS)
AUTO = "auto"
WAYS = ("direct", "mapped", "grouped")


@dataclass
class Conversion:
    """How a model was converted: the options of `superpose` that are not its keys."""

    private: str = "per-task"
    private_layers: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    conv: str = "kernel"
    batch_dim: int | dict[str, int | None] | None = None
    base: bool = False  # each layer keeps a base that all tasks share, and superposes the rest
    random_pairing: bool = False  # layers of one shape change places, differently for each task
    mixed: str = AUTO  # how mixed batches are computed
    frozen: tuple[str, ...] = ()  # parameters that do not learn, and are not bound
    centre: str | None = None  # what is taken out of the inputs that are bound: a mean
    centre_before_norms: bool = False  # of layers right before a batch norm, too; not in old files
    min_inputs: int = 0  # layers that bind fewer inputs are private as a whole
    rank: int = 0  # how many directions each task has for itself beside what is superposed
    recognise: Statistics | None = None  # that each task keeps of the inputs of one layer

    def __post_init__(self) -> None:
        """Check what can be checked without the model."""
        self.private_layers, self.skip = tuple(self.private_layers), tuple(self.skip)
        self.frozen = tuple(self.frozen)
        self.recognise = as_statistics(self.recognise)
        if self.private not in PRIVATE_MODES:
            raise SuperposeError(f"private={self.private!r}: use one of {', '.join(PRIVATE_MODES)}")
        if self.conv not in CONV_MODES:
            raise SuperposeError(f"conv={self.conv!r}: use one of {', '.join(CONV_MODES)}")
        dims = self.batch_dim if isinstance(self.batch_dim, dict) else {"": self.batch_dim}
        for argument, dim in dims.items():
            if dim not in (None, 0, 1):
                where = f"{{{argument!r}: {dim!r}}}" if argument else repr(dim)
                raise SuperposeError(
                    f"batch_dim={where}: use 0 or 1, the dimension of the rows; or None for an "
                    "argument without rows, as in batch_dim={'mask': None}"
                )
        if self.mixed not in (AUTO, *WAYS):
            raise SuperposeError(f"mixed={self.mixed!r}: use one of {', '.join((AUTO, *WAYS))}")
        if self.centre not in (None, *CENTRES):
            raise SuperposeError(f"centre={self.centre!r}: use {' or '.join(map(repr, CENTRES))}")
        for name in ("min_inputs", "rank"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
                raise SuperposeError(f"{name}={value!r}: give a whole number, 0 for none")
            setattr(self, name, int(value))
        if self.private != "per-task" and self.base:
            raise SuperposeError(
                f"private={self.private!r}: with a base, biases and norms are each task's own, or "
                "the tasks would change the base of one another: leave private out; those that "
                "are frozen in the network (requires_grad=False) cost nothing"
            )

    def described(self) -> dict[str, Any]:
        """Its fields, for files and records."""
        kept = None if self.recognise is None else self.recognise.described()
        told = asdict(self) | {"recognise": kept}
        if not self.centre_before_norms:  # which readers of older formats do not know
            del told["centre_before_norms"]
        return told

    @property
    def layers_batch_dim(self) -> int | None:
        """Where the rows are in the layers, unless they know themselves."""
        return None if isinstance(self.batch_dim, dict) else self.batch_dim


def convert(
    model: nn.Module, family: FamilyByLayer, seed: int, conversion: Conversion
) -> frozenset[str]:
    """Turn the layers of a model into superposed ones and give them their contexts.

    It gives the names of the parameters that were frozen, because they are part of a base.
    """
    modules = dict(model.named_modules())
    conversion = _with_names(conversion, model)
    families = LayerFamilies(family, modules)
    skip = conversion.skip
    batch_dims = dict(_batch_dims(modules))
    uncentred = set(_uncentred(modules, conversion)) if conversion.centre == TASK else set()
    for name, module in modules.items():
        _check_initialised(name, module)
        if inside(name, skip):
            continue
        kind = _form(name, module, conversion)
        if kind is not None:
            batch_dim = batch_dims.get(name, conversion.layers_batch_dim)
            own = replace(conversion, centre=None) if name in uncentred else conversion
            _become(kind, module, name, families, seed, batch_dim, own)
        elif isinstance(module, nn.MultiheadAttention):
            skip = (*skip, f"{name}.out_proj")  # its weight is read, it is never called
    check_converted(type(model), modules, skip, conversion)
    _check_rank(modules.values(), conversion.rank)
    families.check_used(m.path for m in modules.values() if isinstance(m, Layer) and m.contexts)
    if conversion.random_pairing:
        pair((m for m in modules.values() if isinstance(m, Layer) and m.contexts), seed)
    if conversion.recognise is not None:
        add_statistics(modules, conversion.recognise, conversion.base)
    frozen = freeze(model, conversion.base)
    _block_fast_paths(modules, on=False)
    return frozen


def freeze(model: nn.Module, base: bool) -> frozenset[str]:
    """Freeze what tasks start from, and, with a base, all that they share but the changes from it.

    It gives the names of the parameters that are frozen now, because they are part of the base.
    """
    modules = list(model.modules())
    _freeze_templates(modules)
    return _freeze_base(model, modules) if base else frozenset()


def add_statistics(
    modules: Mapping[str, nn.Module], wanted: Statistics, has_base: bool
) -> list[Part]:
    """Let each task keep statistics of the inputs of a layer, the first one or the one named."""
    if wanted.base and not has_base:
        raise SuperposeError(
            "recognise: the statistics are to be of a base, and tasks have none: "
            "superpose(…, base=True), or leave base=True of the statistics out"
        )
    able = {
        name: module
        for name, module in modules.items()
        if isinstance(module, Layer)
        and module.has_input_mean
        and "weight" in module.contexts
        and module.plain_class is not nn.modules.linear.NonDynamicallyQuantizableLinear
    }
    if not able:
        raise SuperposeError(
            "recognise: no linear or convolution layer is superposed whose inputs could be kept: "
            "tasks can be told apart by outputs alone, model.recognise(x, evidence='outputs')"
        )
    name = next(iter(able)) if wanted.layer is None else wanted.layer
    if name not in able:
        raise SuperposeError(
            f"recognise: {name!r} is no linear or convolution layer that is superposed: name one "
            f"of {', '.join(map(repr, able))}"
        )
    features = able[name].input_features("weight")
    if wanted.rank > features:
        raise SuperposeError(
            f"recognise: rank={wanted.rank} is more than the {features} inputs of layer {name!r}: "
            f"give {features} or less"
        )
    return keep_statistics(able[name], wanted)


def restore(model: nn.Module) -> None:
    """Undo what `convert` did outside the layers."""
    _block_fast_paths(dict(model.named_modules()), on=True)


def _with_names(conversion: Conversion, model: nn.Module) -> Conversion:
    """Patterns replaced by what they match: layers to skip; layers and tensors to be private."""
    modules = dict(model.named_modules())
    tensors = dict(model.named_parameters(remove_duplicate=False))
    return replace(
        conversion,
        skip=matching("skip", conversion.skip, modules),
        private_layers=matching("private_layers", conversion.private_layers, modules | tensors),
    )


def check_skipped_apart(
    model: nn.Module, skip: Iterable[str], private_layers: Iterable[str]
) -> None:
    """Refuse a layer that is to be shared by all tasks and private to each."""
    named = _with_names(Conversion(skip=tuple(skip), private_layers=tuple(private_layers)), model)
    both = [name for name in named.skip if inside(name, named.private_layers)]
    both += [name for name in named.private_layers if inside(name, named.skip)]
    if both:
        raise SuperposeError(
            f"layer {both[0]!r} is in skip, which all tasks share, and in private_layers, which "
            "each task has for itself: take it out of one of them"
        )


def _form(name: str, module: nn.Module, conversion: Conversion) -> type[Layer] | None:
    """What a module becomes; None if it is left alone."""
    private_layers = conversion.private_layers
    entire = inside(name, private_layers)
    asked = entire or any(joined(name, own) in private_layers for own in module._parameters)
    kind = form(name, module, entire) or keeper_form(name, module, asked)
    if kind is None and entire and next(module.parameters(recurse=False), None) is not None:
        raise SuperposeError(
            f"private_layers: {name!r} is a {type(module).__name__} that cannot be private: a "
            "forward was set on it, its weight is made from other tensors, or it is a container "
            "that runs its children; name layers inside it, or take it out of private_layers"
        )
    return kind


def _become(
    kind: type[Layer],
    module: nn.Module,
    name: str,
    families: LayerFamilies,
    seed: int,
    batch_dim: int | None,
    conversion: Conversion,
) -> None:
    """Make a module one of its kind, with its contexts and with what each task has of it."""
    entire = inside(name, conversion.private_layers)
    if (
        conversion.private == "none"
        and not entire
        and not issubclass(kind, (DeclaredLayer, OwnLayer, Keeper))
    ):
        _strip(module, keep_weight=not issubclass(kind, NormLayer))
    plain, module.__class__ = type(module), kind
    assert isinstance(module, Layer)
    if isinstance(module, ConvLayer):
        module.mode = conversion.conv
    if isinstance(module, DeclaredLayer):
        module.input_dims = input_dims(name, module) or {}
    chosen = families.of(name) if kind.binds_weights and not entire else None
    binding = Binding(conversion.base, conversion.frozen, conversion.centre)
    if chosen is not None and _inputs_bound(module, name, binding) < conversion.min_inputs:
        chosen, entire = None, True
    module.superpose(plain, name, chosen, seed, batch_dim, binding)
    module.make_private(_tasks_own(module, conversion, entire))
    if conversion.rank:
        add_rank(module, conversion.rank)
    if conversion.centre == TASK:
        add_mean(module)
    if not module.contexts and not module.private:
        module.unsuperpose()


def _check_rank(modules: Iterable[nn.Module], rank: int) -> None:
    """Refuse a rank that no layer can have."""
    own = [name for module in modules if isinstance(module, Layer) for name in module.private]
    if rank and not any(name.endswith(UP) for name in own):
        raise SuperposeError(
            f"rank={rank}: a low-rank part has rank · (inputs + outputs) numbers, and in no "
            "superposed layer is that less than the weight has: give a smaller rank, or none"
        )


def _inputs_bound(layer: Layer, path: str, binding: Binding) -> float:
    """The fewest inputs that one of its weights would bind, of each group by itself."""
    learns = (n for own, (n, _) in layer.bound().items() if joined(path, own) not in binding.frozen)
    return min(learns, default=inf)


def _tasks_own(layer: Layer, conversion: Conversion, entire: bool) -> list[str]:
    """What each task has of a layer; of what is kept beside layers, vectors and what is named."""
    private_layers, per_task = conversion.private_layers, conversion.private == "per-task"
    if not isinstance(layer, Keeper):
        frozen = [] if entire else list(layer.bound())  # weights that are not bound
        return (
            [name for name in layer.unbound() if name not in frozen] if entire or per_task else []
        )
    vectors = per_task and not makes_weights(layer.path, layer)
    return [
        name
        for name, tensor in kept(layer).items()
        if entire or joined(layer.path, name) in private_layers or (vectors and is_vector(tensor))
    ]


def _check_initialised(name: str, module: nn.Module) -> None:
    own = module.parameters(recurse=False)
    if any(isinstance(parameter, UninitializedParameter) for parameter in own):
        raise SuperposeError(
            f"layer {name!r} is lazy and has no weights yet: run a batch through the network first"
        )


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


def _uncentred(modules: dict[str, nn.Module], conversion: Conversion) -> Iterator[str]:
    """Layers that are never called; in old files those that a batch norm follows, too."""
    attentions = (n for n, m in modules.items() if isinstance(m, nn.MultiheadAttention))
    yield from (f"{name}.out_proj" for name in attentions)
    if conversion.centre_before_norms:
        return
    kinds = (nn.modules.batchnorm._BatchNorm, ComplexBatchNorm)
    own = [name for name, module in modules.items() if not any(module.children())]
    for name, after in pairwise(own):
        if isinstance(modules[after], kinds):
            yield name


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


def _freeze_base(model: nn.Module, modules: Iterable[nn.Module]) -> frozenset[str]:
    """What all tasks share is part of their base and stays as it is; the changes from it learn."""
    layers = [module for module in modules if isinstance(module, Layer)]
    changes = {id(layer.stored(name)) for layer in layers for name in layer.contexts}
    held = {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.requires_grad and id(parameter) not in changes and not is_private(name)
    }
    for parameter in held.values():
        parameter.requires_grad_(False)
    return frozenset(held)


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
