"""Conversion of a network's modules, in place: which tensors are bound, and which are private."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from superpose.contexts import LayerContext
from superpose.errors import SuperposeError
from superpose.nn.flats import FROZEN, STATISTICS, TRAINED, Slot
from superpose.nn.forms import declared  # noqa: F401 (it registers PyTorch's layers)
from superpose.nn.forms.norm import Norm
from superpose.nn.forms.table import Table
from superpose.nn.kinds import (
    Acts,
    InputStatistics,
    Kind,
    LearnedContext,
    LowRank,
    RowMean,
    TaskMean,
)
from superpose.nn.layer import Bound, Layer
from superpose.nn.layout import Layout
from superpose.nn.leftovers import check_converted
from superpose.nn.names import inside, joined, listed
from superpose.nn.options import TASK, Options
from superpose.nn.patterns import FamilyByLayer, LayerFamilies, matching
from superpose.nn.private import Private
from superpose.nn.reading import layer_class
from superpose.nn.registry import Declared, InTurn, computes_by_class, form_of
from superpose.nn.view import Home

FLAGS = ("affine", "track_running_stats", "elementwise_affine")  # of what a norm has
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, torch.jit.ScriptModule)


def convert(
    model: nn.Module, family: FamilyByLayer, seed: int, options: Options, home: Home
) -> Private:
    """Turn the modules of a network into superposed layers, and make their private tensors."""
    modules = dict(model.named_modules())
    options = with_names(options, model)
    families, skip = LayerFamilies(family, modules), options.skip
    layers = []
    for path, module in modules.items():
        _check_initialised(path, module)
        if inside(path, skip):
            continue
        layer = _become(path, module, options, families, seed, home)
        layers += [] if layer is None else [layer]
        if isinstance(module, nn.MultiheadAttention) and not isinstance(module, Layer):
            skip = (*skip, f"{path}.out_proj")  # its weight is read, it is never called
    check_converted(type(model), modules, skip, options)
    families.check_used(layer.path for layer in layers if layer.bound)
    for path, dim in _row_dims(modules, options):
        if isinstance(modules.get(path), Layer):
            modules[path].row_dim = dim
    slots = [slot for layer in layers for slot in _plain_slots(layer)]
    slots += _give(layers, _kinds(options, layers))
    return Private(layers, slots, options.base)


def with_names(options: Options, model: nn.Module) -> Options:
    """Patterns replaced by what they match: layers to skip; layers and tensors to be private."""
    modules = dict(model.named_modules())
    parameters = dict(model.named_parameters(remove_duplicate=False))
    tensors = parameters | dict(model.named_buffers(remove_duplicate=False))
    return replace(
        options,
        skip=matching("skip", options.skip, modules),
        private_layers=matching("private_layers", options.private_layers, modules | tensors),
        learn=matching("learn", options.learn, modules | parameters),
    )


def check_skipped_apart(
    model: nn.Module, skip: Iterable[str], private_layers: Iterable[str]
) -> None:
    """Refuse a layer that is to be shared by all tasks and private to each."""
    named = with_names(Options(skip=tuple(skip), private_layers=tuple(private_layers)), model)
    both = [name for name in named.skip if inside(name, named.private_layers)]
    both += [name for name in named.private_layers if inside(name, named.skip)]
    if both:
        raise SuperposeError(
            f"layer {both[0]!r} is in skip, which all tasks share, and in private_layers, which "
            "each task has for itself: take it out of one of them"
        )


def _become(
    path: str, module: Any, options: Options, families: LayerFamilies, seed: int, home: Home
) -> Layer | None:
    """Make a module a superposed layer, if it is declared or if some of it is to be private."""
    entire = inside(path, options.private_layers)
    own = {n: p for n, p in module._parameters.items() if p is not None}
    buffers = {n: b for n, b in module._buffers.items() if b is not None}
    asked = [n for n in (*own, *buffers) if joined(path, n) in options.private_layers]
    form = form_of(module)
    if form is None and not asked and not (entire and (own or buffers)):
        return None
    if form is None:
        _check_can_be_private(path, module)
        form = Layer
    if options.private == "none" and not entire and _may_lack(module, form):
        _strip(module, keep_weight=form.binds)
    own = {n: p for n, p in module._parameters.items() if p is not None}
    layouts = {} if entire else _layouts(path, module, form, options)
    if layouts and min(at.inputs(own[n])[0] for n, at in layouts.items()) < options.min_inputs:
        layouts, entire = {}, True
    private = dict.fromkeys(asked)
    if entire:
        private |= dict.fromkeys(
            n for n, p in own.items() if p.is_floating_point() or p.is_complex()
        )
        private |= dict.fromkeys(n for n, b in module._buffers.items() if b is not None)
    elif options.private == "per-task" and form is not Layer and not issubclass(form, Table):
        weights = form.layouts(module, options)
        private |= dict.fromkeys(n for n in own if n not in weights)
        private |= dict.fromkeys(form.statistics(module))
    if not layouts and not private:
        return None
    shifted = layouts and options.centre == TASK and "bias" in module._parameters
    read = tuple(dict.fromkeys([*layouts, *private, *(["bias"] if shifted else [])]))
    _check_free(path, module, form)
    plain: Any = type(module)
    module.__class__ = layer_class(cast(Any, form), plain, read)
    module.path, module.plain_class, module.home = path, plain, home
    module.private, module.row_dim = tuple(private), _row_dim(options)
    module.has_base, module.acts = bool(options.base and layouts), Acts.of([])
    change = "change." if options.base else ""
    module.bound = {
        name: Bound(
            LayerContext(
                families.of(path), seed, joined(path, change + name), *at.inputs(own[name])
            ),
            at,
        )
        for name, at in layouts.items()
    }
    if module.has_base:
        module.bases = nn.ParameterDict({name: own[name] for name in layouts})
        for name in layouts:
            like = own[name]
            zeros = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
            module._parameters[name] = nn.Parameter(zeros)
    made: Layer = module
    return made


def _layouts(path: str, module: Any, form: type[Layer], options: Options) -> dict[str, Layout]:
    """Of the weights that are there, are numbers, and learn."""
    found = {}
    for name, at in form.layouts(module, options).items():
        weight = module._parameters.get(name)
        numbers = weight is not None and (weight.is_floating_point() or weight.is_complex())
        if numbers and joined(path, name) not in options.frozen:
            found[name] = at
    return found


def _check_can_be_private(path: str, module: nn.Module) -> None:
    container = isinstance(module, (*CONTAINERS, ParametrizationList))
    if container or is_parametrized(module) or not computes_by_class(module):
        raise SuperposeError(
            f"private_layers: {path!r} is a {type(module).__name__} that cannot be private: a "
            "forward was set on it, its weight is made from other tensors, or it is a container "
            "that runs its children; name layers inside it, or take it out of private_layers"
        )


def _check_free(path: str, module: nn.Module, form: type[Layer]) -> None:
    """What a layer gets must not hide what it has."""
    names = {n for one in form.__mro__ if issubclass(one, Layer) for n in vars(one)}
    names |= set(Layer.SETTINGS) | {"bases"}
    known = {
        n for one in type(module).__mro__ if one.__module__.startswith("torch.") for n in vars(one)
    }
    taken = next(
        (n for n in sorted(names - known) if hasattr(module, n) and not n.startswith("__")), None
    )
    if taken is not None and taken not in ("forward", "features_last", "_flat_weights"):
        raise SuperposeError(
            f"{type(module).__name__} {path!r} already has {taken!r}, which a superposed layer "
            "needs: rename it, or name the layer in skip"
        )


def _kinds(options: Options, layers: list[Layer]) -> list[Kind]:
    """The kinds of private tensors that are asked for."""
    kinds: list[Kind] = [LearnedContext()]
    if options.centre is not None:
        kinds.append(TaskMean() if options.centre == TASK else RowMean())
    kinds += [LowRank(options.rank)] if options.rank else []
    if options.recognise is not None:
        path = recognition_layer(layers, options)
        kinds.append(InputStatistics(path, options.recognise))
    return kinds


def _give(layers: list[Layer], kinds: list[Kind]) -> list[Slot]:
    """Let each bound weight have the kinds of private tensors that it can have."""
    slots: list[Slot] = []
    used: set[Kind] = set()
    for layer in layers:
        pairs: list[tuple[Kind, str]] = []
        for kind in kinds:
            for name in layer.bound:
                starts = kind.starts(layer, name)
                if starts is not None:
                    used.add(kind)
                    pairs.append((kind, name))
                    slots += added_slots(layer, kind, name, starts)
        layer.acts = Acts.of(pairs)
    for kind in kinds[1:]:
        if kind not in used:
            raise SuperposeError(_no_layer_for(kind))
    return slots


def add_kind(layers: list[Layer], kind: Kind, private: Private, tasks: Iterable[int]) -> None:
    """Let tasks that are there already keep something more beside bound weights."""
    slots: list[Slot] = []
    for layer in layers:
        for name in layer.bound:
            starts = kind.starts(layer, name)
            if starts is not None:
                slots += added_slots(layer, kind, name, starts)
                layer.acts = Acts.of([*layer.acts.kinds, (kind, name)])
    private.extend(slots, tasks)


def added_slots(layer: Layer, kind: Kind, name: str, starts: dict[str, torch.Tensor]) -> list[Slot]:
    """Private tensors beside a weight, whose names the plain layer must not have."""
    for ending in starts:
        if hasattr(layer, name + ending):
            raise SuperposeError(
                f"{layer.plain_class.__name__} {layer.path!r} already has {name + ending!r}, which "
                f"each task is to have beside {name!r}: rename it, or name the layer in skip"
            )
    return [Slot(layer.path, name + end, kind.flat, start, True) for end, start in starts.items()]


def _no_layer_for(kind: Kind) -> str:
    if isinstance(kind, LowRank):
        return (
            f"rank={kind.rank}: a low-rank part has rank · (inputs + outputs) numbers, and in no "
            "superposed layer is that less than the weight has: give a smaller rank, or none"
        )
    return (
        f"{kind.option}: the network has no linear or convolution layer that is superposed and "
        f"called: leave {kind.option} out"
    )


def recognition_layer(layers: Iterable[Layer], options: Options) -> str:
    """The layer whose inputs tasks are recognised by: the first one, or the one that is named."""
    wanted = options.recognise
    assert wanted is not None
    if wanted.base and not options.base:
        raise SuperposeError(
            "recognise: the statistics are to be of a base, and tasks have none: "
            "superpose(…, base=True), or leave base=True of the statistics out"
        )
    able = {la.path: la for la in layers if "weight" in la.bound and la.input_features("weight")}
    if not able:
        raise SuperposeError(
            "recognise: no linear or convolution layer is superposed whose inputs could be kept: "
            "tasks can be told apart by outputs alone, model.recognise(x, evidence='outputs')"
        )
    name = next(iter(able)) if wanted.layer is None else wanted.layer
    if name not in able:
        raise SuperposeError(
            f"recognise: {name!r} is no linear or convolution layer that is superposed: name one "
            f"of {listed([*map(repr, able)])}"
        )
    features = able[name].input_features("weight")
    if wanted.rank > features:
        raise SuperposeError(
            f"recognise: rank={wanted.rank} is more than the {features} inputs of layer {name!r}: "
            f"give {features} or less"
        )
    return name


def _plain_slots(layer: Layer) -> Iterator[Slot]:
    """The plain layer's tensors that each task has for itself."""
    for name in layer.private:
        tensor = layer.stored(name)
        parameter = isinstance(tensor, nn.Parameter)
        learns = TRAINED if tensor.requires_grad else FROZEN
        yield Slot(layer.path, name, learns if parameter else STATISTICS, tensor)


def _check_initialised(name: str, module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        if isinstance(parameter, UninitializedParameter):
            raise SuperposeError(
                f"layer {name!r} is lazy and has no weights yet: run a batch through the network "
                "first"
            )


def _row_dim(options: Options) -> int | None:
    """Where the rows are in the layers, unless they know themselves."""
    return None if isinstance(options.batch_dim, dict) else options.batch_dim


def _row_dims(modules: dict[str, nn.Module], options: Options) -> Iterator[tuple[str, int]]:
    """Where PyTorch's own transformer layers have their rows; attention tells by itself."""
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    stacks = (nn.TransformerEncoder, nn.TransformerDecoder)
    for outer, module in modules.items():
        first: Any = module.layers[0] if isinstance(module, stacks) else module
        if isinstance(first, kinds):
            dim = 0 if first.self_attn.batch_first else 1
            yield from ((name, dim) for name in modules if inside(name, [outer]) or not outer)


def _may_lack(module: nn.Module, form: type[Layer]) -> bool:
    """Whether its forward runs without biases or, of a norm, without scales and statistics."""
    ours = issubclass(form, Declared) and not issubclass(form, InTurn)
    return (form.binds and form is not Layer and not ours) or (
        issubclass(form, Norm) and any(hasattr(module, flag) for flag in FLAGS)
    )


def _strip(module: Any, keep_weight: bool = True) -> None:
    """Remove what a task would have to keep for itself: biases, norm scales and statistics."""
    if isinstance(module, nn.RNNBase):
        _strip_recurrent(module)
        return
    for name in list(module._parameters):
        if not keep_weight or "bias" in name:
            module._parameters[name] = None
    for name in [] if keep_weight else list(module._buffers):
        module._buffers[name] = None
    for flag in FLAGS:
        if hasattr(module, flag):
            setattr(module, flag, False)


def _strip_recurrent(module: nn.RNNBase) -> None:
    names = [name for name in module._flat_weights_names if name.startswith("bias")]
    for name in names:
        del module._parameters[name]
    module.bias = False
    module._flat_weights_names = [n for n in module._flat_weights_names if n not in names]
    module._all_weights = [[n for n in group if n not in names] for group in module._all_weights]
    module._init_flat_weights()
