"""A network put in superposition, and back again: `superpose` and `unsuperpose`."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from superpose import contexts
from superpose.contexts import Family, Identity
from superpose.cost import size
from superpose.errors import SuperposeError, kind_of
from superpose.model.batch import BatchDim
from superpose.model.superposed import Superposed, layers, superposed_class
from superpose.model.tasks import WHOLE, Name, Superposition, labels_of, several
from superpose.nn.additions import BEGUN, add
from superpose.nn.binding import with_base
from superpose.nn.centring import ROWS, TASK
from superpose.nn.complex import complexify
from superpose.nn.convert import AUTO, Conversion, check_skipped_apart, convert, restore
from superpose.nn.layer import Layer
from superpose.nn.names import joined
from superpose.nn.patterns import FamilyByLayer, family_by_layer, several_families
from superpose.nn.private import PrivateState
from superpose.nn.quantised import full, is_quantised
from superpose.nn.statistics import Statistics, as_statistics

S = TypeVar("S", bound=Superposed)


def superpose(
    net: nn.Module,
    family: str | Family | Mapping[str, str | Family] = "binary",
    tasks: int | Iterable[str] = 2,
    *,
    seed: int = 0,
    private: str = "per-task",
    private_layers: Iterable[str] = (),
    skip: Iterable[str] = (),
    conv: str = "kernel",
    learnable: bool = False,
    batch_dim: BatchDim = None,
    mixed: str = AUTO,
    base: bool | nn.Module | None = None,
    rank: int = 0,
    centre: str | None = None,
    min_inputs: int = 0,
    bind_frozen: bool = False,
    recognise: bool | str | Statistics = False,
) -> Superposed:
    """A copy of `net` that holds many models in one set of weights, one for each task.

    A pretrained network needs `base=True`: its weights W₀ stay as they are, every task starts from
    them, and what is superposed is the change, y = W₀ x + W C(k) x, with W zero at first. Without a
    base the tasks start from W C(k), in which nothing is left of what the network had learned.
    `base` may also be another network of the same architecture, whose weights it then is.

    Linear, convolution, attention and recurrent layers are bound by the family's contexts, each
    derived from (seed, layer name, task). The rest is for `private` to decide:

    - "per-task" (default): each task has its own biases, norm scales and norm statistics;
    - "shared": all tasks share them;
    - "none": there are none, as in the paper.

    Layers named in `private_layers` (an output layer, an embedding) become private as a whole, and
    so do tensors that a module keeps beside its layers (a table of positions). Layers named in
    `skip` stay plain and shared. A name stands for all that is in the layer, and may be a pattern,
    "*.stem". So may those of several families, `{"encoder.*": "hadamard", "*": "binary"}`, of which
    a layer has the first that it matches. `conv="channel"` binds the channels of a convolution's
    input instead of its kernel. `learnable=True` trains the family's own numbers.

    `rank=r` gives each task a low-rank part of its own in every layer, y = … + B A x, as LoRA does.
    `centre="task"` takes the mean of a task's inputs out before they are bound, "rows" that of each
    row: most of what tasks have in common, and disturb each other by, is a mean. Layers that bind
    fewer inputs than `min_inputs`, for each group, are private as a whole. Weights that are frozen
    in the network (`requires_grad=False`) are not bound but with `bind_frozen=True`.

    `recognise=True` lets each task keep statistics of the network's inputs while it learns, so that
    `model.recognise(x)` finds the task of x; the name of a layer, or `nn.Statistics`, says which.

    The rows of a batch are in the first dimension of every tensor that the network is given;
    `batch_dim` says where they are else, as a number or by the argument's name, with None for a
    tensor that has no rows: `batch_dim={"mask": None}`. `mixed` is how mixed batches are computed:
    "direct", "mapped", "grouped", or "auto", the first that is right for the network.

    >>> import torch
    >>> model = superpose(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), tasks=3)
    >>> model(torch.ones(5, 4), task=2).shape
    torch.Size([5, 2])
    >>> model(torch.ones(3, 4), task=[0, 2, 2]).shape
    torch.Size([3, 2])
    """
    check_network(net)
    labels = labels_of(tasks)
    chosen = _with_learning(family_by_layer(family), learnable)
    if base is None and any(not isinstance(one, Identity) for one in several_families(chosen)):
        _warn_of_scrambling(net)
    private_layers = several("private_layers", private_layers)
    skip = several("skip", skip)
    check_skipped_apart(net, skip, private_layers)
    return build(
        _with_weights(net, base) if isinstance(base, nn.Module) else net,
        chosen,
        {label: number for number, label in enumerate(labels)},
        seed,
        Conversion(
            private,
            private_layers,
            skip,
            conv,
            dict(batch_dim) if isinstance(batch_dim, Mapping) else batch_dim,
            _has_base(base),
            mixed=mixed,
            frozen=() if bind_frozen else _frozen(net),
            centre=centre,
            centre_before_norms=centre == TASK,
            min_inputs=min_inputs,
            rank=rank,
            recognise=as_statistics(recognise),
        ),
        Superposed,
    )


def check_network(net: nn.Module) -> None:
    """Refuse a class, a state, and whatever else is no network."""
    if not isinstance(net, nn.Module):
        raise SuperposeError(
            f"{kind_of(net)} is no network: give an nn.Module, such as nn.Linear(4, 2), not its "
            "class"
        )


def _with_learning(family: FamilyByLayer, learnable: bool) -> FamilyByLayer:
    if isinstance(family, dict):
        return {name: contexts.with_learning(one, learnable) for name, one in family.items()}
    return contexts.with_learning(family, learnable)


def build(
    net: nn.Module,
    family: FamilyByLayer,
    names: dict[Name, int],
    seed: int,
    conversion: Conversion,
    kind: type[S],
    *,
    start: bool = True,
) -> S:
    """What `superpose` does, from the values that a checkpoint keeps.

    A checkpoint gives tasks what they start from itself, when it has loaded the layers.
    """
    if isinstance(net, Superposed):
        raise SuperposeError(
            "the model is superposed already: add_task() adds tasks to it; a file is loaded into "
            "the plain network"
        )
    for name, module in net.named_modules():
        if isinstance(module, Superposed):
            raise SuperposeError(
                f"{name!r} is superposed already, with tasks of its own: superpose the whole "
                "network at once, or unsuperpose() that part first"
            )
    if not isinstance(seed, WHOLE):
        raise SuperposeError(f"seed={seed!r}: give a whole number")
    seed = int(seed)
    _check_attributes(net, kind)
    model = copy.deepcopy(net)
    if several_families(family)[0].complex_valued:
        _check_real(conversion)
        model = complexify(model, seed)
    _check_arguments(net, conversion.batch_dim)
    held = convert(model, family, seed, conversion)
    plain: Any = type(model)
    model.__class__ = superposed_class(plain, kind)  # type: ignore[arg-type]
    assert isinstance(model, kind)
    model.superposition = Superposition(family, seed, names, conversion, size([net]), held=held)
    if conversion.base and kind.starts_from_base:
        _check_statistics(model)
        bound = (layer for layer in layers(model) if layer.contexts)
        first = min(bound, key=lambda layer: layer.path)
        add(first, next(iter(first.contexts)), BEGUN)
    private = PrivateState.put_into(layers(model))
    private.names = model.superposition.names
    if start:
        private.add(names.values())
    return model


def unsuperpose(model: nn.Module, task: Name | None = None) -> nn.Module:
    """The plain module again: as it stands in the weights, or the model of one task read out.

    With a task, the result computes what model(x, task=task) does: its weights are W C(k), and the
    task's private parameters are its own. Without one, of a model that tasks started from a base
    in, it is the base. A complex-valued network stays complex-valued.
    """
    if not isinstance(model, Superposed):
        raise SuperposeError(
            f"{type(model).__name__} is not superposed: give a model that superpose() made"
        )
    plain: nn.Module = copy.deepcopy(model)
    number = None if task is None else model.superposition.number(task)
    del plain.superposition
    for name in inspect.get_annotations(type(model)._kind):
        vars(plain).pop(name, None)
    plain.__class__ = type(model)._plain
    reading = {} if number is None else model.tensors_of(number)
    _warn_of_biases(model, reading)
    for layer, stored in zip(layers(plain), layers(model), strict=True):
        if number is not None:
            _assign(layer, reading[layer.path])
        elif model.starts_from_base:
            for name, base in layer.bases.items():  # themselves, because they may be tied
                own = nn.Parameter(full(base)) if is_quantised(base) else base
                setattr(layer, name, own)
        else:
            _assign(layer, with_base(stored))
        for name in layer.bases:
            learned = joined(layer.path, f"bases.{name}") in model.superposition.held
            getattr(layer, name).requires_grad_(learned or not model.starts_from_base)
        layer.unsuperpose()
    for name, parameter in plain.named_parameters(remove_duplicate=False):
        if name in model.superposition.held:
            parameter.requires_grad_()
    restore(plain)
    return plain


def _warn_of_biases(model: Superposed, reading: dict[str, dict[str, Tensor]]) -> None:
    """Centring by task gives a bias to layers that have none, which other code may leave out."""
    new = [
        joined(layer.path, name)
        for layer in layers(model)
        for name in reading.get(layer.path, {})
        if getattr(layer, name, None) is None
    ]
    if new:
        warnings.warn(
            f"{new[0]}{f' and {len(new) - 1} more' if len(new) > 1 else ''} is new: the layer had "
            "no bias, and centre='task' needs one. An architecture without it (from_pretrained, "
            "merged adapters) computes something else with these weights: use centre='rows' where "
            "that is needed",
            stacklevel=3,
        )


def _assign(layer: Layer, values: dict[str, Tensor]) -> None:
    """New parameters, because a weight tied to another (an embedding) is no longer the same."""
    for name, value in values.items():
        own = getattr(layer, name)
        value = value.detach().clone()
        if own is None or isinstance(own, nn.Parameter):  # a layer without a bias may need one now
            learns = own is None or own.requires_grad or is_quantised(own)
            setattr(layer, name, nn.Parameter(value, learns))
        else:
            own.copy_(value)


def _check_statistics(model: nn.Module) -> None:
    """That nothing that all tasks share, and start from, changes when one of them learns."""
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None and not isinstance(module, Layer):
            raise SuperposeError(
                f"skip: {name!r} keeps running statistics, and with a base every task would change "
                "those of all: take it out of skip, so that each task has its own"
            )


def _frozen(net: nn.Module) -> tuple[str, ...]:
    """The parameters that could learn, and do not, by all their names."""
    named = net.named_parameters(remove_duplicate=False)
    return tuple(n for n, p in named if p.is_floating_point() and not p.requires_grad)


def _has_base(base: bool | nn.Module | None) -> bool:
    if base is None or isinstance(base, (bool, nn.Module)):
        return bool(base) if isinstance(base, bool) else base is not None
    raise SuperposeError(
        f"base is {kind_of(base)}: give True for the network's own weights, or a network "
        "that has them; load a state_dict into one first"
    )


def _with_weights(net: nn.Module, base: nn.Module) -> nn.Module:
    """A copy of the network with the weights of another."""
    if isinstance(base, Superposed):
        raise SuperposeError("the base is superposed: give unsuperpose(base, task)")
    own, given = net.state_dict(keep_vars=True), base.state_dict()
    for name, tensor in own.items():
        if name not in given or given[name].shape != tensor.shape:
            there = tuple(given[name].shape) if name in given else "missing"
            raise SuperposeError(
                f"the base is another architecture: {name} is {tuple(tensor.shape)} in the network "
                f"and {there} in the base; if only an output layer differs, copy the other weights "
                "into the network, and use base=True"
            )
        if given[name].is_meta or tensor.is_meta:
            raise SuperposeError(
                f"{name} is on the meta device, without numbers: load its weights first"
            )
        if given[name].dtype != tensor.dtype:
            raise SuperposeError(
                f"{name} is {tensor.dtype} in the network and {given[name].dtype} in the base: "
                "convert one of them with .to(…)"
            )
    extra = next((name for name in given if name not in own), None)
    if extra is not None:
        raise SuperposeError(f"the base is another architecture: the network has no {extra}")
    first: dict[int, str] = {}
    for name, tensor in own.items():
        other = first.setdefault(id(tensor), name)
        if other != name and not torch.equal(given[name], given[other]):
            raise SuperposeError(
                f"{name} and {other} are one tensor in the network, and differ in the base: tie "
                "them in the base, or give the network a copy of each"
            )
    made = copy.deepcopy(net)
    made.load_state_dict(given)
    _take_other_buffers(made, base)
    return made


def _take_other_buffers(net: nn.Module, base: nn.Module) -> None:
    """Those that are in no state, which the base computes with all the same."""
    kept = net.state_dict()
    theirs = dict(base.named_buffers(remove_duplicate=False))
    for name, own in list(net.named_buffers(remove_duplicate=False)):
        if name in kept:
            continue
        if name not in theirs or theirs[name].shape != own.shape:
            raise SuperposeError(
                f"the base is another architecture: the buffer {name} is not the same there"
            )
        path, _, leaf = name.rpartition(".")
        net.get_submodule(path)._buffers[leaf] = theirs[name].detach().clone().to(own.device)


def _check_real(conversion: Conversion) -> None:
    given = {"base": conversion.base, "rank": conversion.rank, "centre": conversion.centre}
    for option, value in given.items():
        if value and value != ROWS:
            raise SuperposeError(
                f"{option}={value!r} does not go with a family that makes the network "
                "complex-valued: use 'phase', which is complex superposition for a real network"
            )


def _warn_of_scrambling(net: nn.Module) -> None:
    """`from_pretrained` of transformers leaves the name of what it loaded."""
    name = getattr(getattr(net, "config", None), "_name_or_path", "")
    if name:
        warnings.warn(
            f"{type(net).__name__} was loaded from {name!r}, and without a base nothing is left of "
            "what it knows, because every task starts from scrambled weights: use "
            "superpose(…, base=True), or base=False if that is meant",
            stacklevel=3,
        )


def _check_arguments(net: nn.Module, batch_dim: BatchDim) -> None:
    known = inspect.signature(net.forward).parameters
    if not isinstance(batch_dim, Mapping) or any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    unknown = [name for name in batch_dim if name not in known]
    if unknown:
        raise SuperposeError(
            f"batch_dim: forward of {type(net).__name__} has no argument {unknown[0]!r}; it has "
            f"{', '.join(known)}"
        )


def _check_attributes(net: nn.Module, kind: type[Superposed]) -> None:
    if "forward" in vars(net):
        raise SuperposeError(
            f"{type(net).__name__} has a forward set on it, which would run instead of that of the "
            "superposed model: remove it, or put the network inside a module of its own"
        )
    own = [name for name in {**vars(Superposed), **vars(kind)} if not name.startswith("_")]
    taken = [name for name in own if hasattr(net, name) and not hasattr(nn.Module, name)]
    if taken:
        raise SuperposeError(
            f"{type(net).__name__} already has {taken[0]!r}, which a superposed model needs: "
            "rename it, or put the network inside a module of its own"
        )
    if "task" in inspect.signature(net.forward).parameters:
        raise SuperposeError(
            f"forward of {type(net).__name__} takes a task of its own, which would never reach it: "
            "rename that argument, or put the network inside a module of its own"
        )
