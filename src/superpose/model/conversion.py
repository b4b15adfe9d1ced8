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
from superpose.model.base import frozen_in, has_base, with_weights
from superpose.model.batch import BatchDim, rows_returned
from superpose.model.beside import freeze
from superpose.model.classes import superposed_class
from superpose.model.model import Superposed
from superpose.model.state import DERIVED
from superpose.model.tasks import WHOLE, Name, Superposition, labels_of, several
from superpose.nn.complex import complexify
from superpose.nn.convert import check_skipped_apart, convert
from superpose.nn.flats import TRAINED
from superpose.nn.layer import Layer
from superpose.nn.names import joined
from superpose.nn.options import ROWS, Options
from superpose.nn.patterns import FamilyByLayer, family_by_layer, several_families
from superpose.nn.private import STATE
from superpose.nn.quantised import full, is_quantised
from superpose.nn.statistics import Statistics, as_statistics
from superpose.nn.view import Home

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
    learn: Iterable[str] = (),
    conv: str = "kernel",
    learnable: bool = False,
    batch_dim: BatchDim = None,
    mixed: str | None = None,
    base: bool | nn.Module | None = None,
    rank: int = 0,
    centre: str | None = None,
    min_inputs: int = 0,
    bind_frozen: bool = False,
    recognise: bool | str | Statistics = False,
) -> Superposed:
    """A copy of `net` that holds many models in one set of weights, one for each task.

    A pretrained network needs `base=True`: its weights W₀ stay as they are, every task starts from
    them, and what is superposed is the change, y = W₀x + W·C(k)·x, with W zero at first; call
    `model.begin(task)` before a task learns. Without a base the tasks start from W·C(k), in which
    nothing is left of what the network had learned. `base` may also be another network of the same
    architecture, whose weights it then is.

    Linear, convolution, attention and recurrent layers are bound by the family's contexts, each
    derived from (seed, layer name, task); so are modules that were declared with `sp.nn.register`.
    Their biases, and norms, are for `private` to decide:

    - "per-task" (default): each task has its own biases, norm scales and norm statistics;
    - "shared": all tasks share them;
    - "none": there are none, as in the paper.

    Layers named in `private_layers` (an output layer, an embedding) become private as a whole, and
    so do tensors named there that a module keeps beside its layers (a table of positions). Layers
    named in `skip` stay plain and shared. What all tasks share, embeddings too, learns as in the
    plain network; with a base it does not, unless `learn` names it. A name stands for all that is
    in the layer, and may be a pattern, "*.stem". So may those of several families, `{"encoder.*":
    "hadamard", "*": "binary"}`, of which a layer has the first that it matches. `conv="channel"`
    binds the channels of a convolution's input instead of its kernel. `learnable=True` trains the
    family's own numbers.

    `rank=r` gives each task a low-rank part of its own in every layer, y = … + Bₖ·Aₖ·x, as LoRA
    does. `centre="task"` takes the mean of a task's inputs out before they are bound, "rows" that
    of each row. Layers that bind fewer inputs than `min_inputs`, for each group, are private as a
    whole. Weights that are frozen in the network (`requires_grad=False`) are not bound but with
    `bind_frozen=True`.

    `recognise=True` lets each task keep statistics of the network's inputs while it learns, so that
    `model.recognise(x)` finds the task of x; the name of a layer, or `nn.Statistics`, says which.

    The rows of a batch are in the first dimension of every tensor that the network is given;
    `batch_dim` says where they are else, as a number or by the argument's name, with None for a
    tensor that has no rows: `batch_dim={"mask": None}`; "return" is what the network returns.
    `mixed="direct"` says that mixed batches are right in one pass, which `sp.check_mixed` tells.

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
    skip, learn = several("skip", skip), several("learn", learn)
    check_skipped_apart(net, skip, private_layers)
    return build(
        with_weights(net, base) if isinstance(base, nn.Module) else net,
        chosen,
        {label: number for number, label in enumerate(labels)},
        seed,
        Options(
            private,
            private_layers,
            skip,
            learn,
            conv,
            dict(batch_dim) if isinstance(batch_dim, Mapping) else batch_dim,
            has_base(base),
            mixed,
            frozen=() if bind_frozen else frozen_in(net),
            centre=centre,
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
    options: Options,
    kind: type[S],
    *,
    start: bool = True,
) -> S:
    """What `superpose` does, from the values that a file keeps.

    Without `start`, tasks get their private tensors later, when a file's weights are there.
    """
    _check_plain(net, kind)
    if not isinstance(seed, WHOLE):
        raise SuperposeError(f"seed={seed!r}: give a whole number")
    seed, home = int(seed), Home()
    model = _copied(net)
    if several_families(family)[0].complex_valued:
        _check_real(options)
        model = complexify(model, seed)
    _check_arguments(net, options.batch_dim)
    private = convert(model, family, seed, options, home)
    plain: Any = type(model)
    model.__class__ = superposed_class(plain, kind)  # type: ignore[arg-type]
    assert isinstance(model, kind)
    model.superposition = Superposition(family, seed, names, options, size([net]), home)
    model.superposition.returned = rows_returned(net, options.batch_dim)
    if kind is Superposed and options.base:
        _check_statistics(model)
    held = freeze(model, options, warn=kind is Superposed)  # what is packed does not learn
    model.superposition.held = held
    model.add_module(STATE, private)
    private.add(names.values() if start else ())
    return model


def unsuperpose(model: nn.Module, task: Name | None = None) -> nn.Module:
    """The plain module again: as it stands in the weights, or the model of one task read out.

    With a task, the result computes what model(x, task=task) does: its weights are W·C(k), and the
    task's private parameters are its own. Without one, of a model that tasks started from a base
    in, it is the base. A complex-valued network stays complex-valued.
    """
    if not isinstance(model, Superposed):
        raise SuperposeError(
            f"{type(model).__name__} is not superposed: give a model that superpose() made"
        )
    model.check_layers()
    plain: Any = copy.deepcopy(model)
    number = None if task is None else model.superposition.number(task)
    read = read_out(plain, number)
    held, own = plain.superposition.held, plain.superposed_layers
    kinds = {slot.full_name: slot.flat for slot in plain.private_state.slots if not slot.added}
    if number is not None:
        _warn_of_biases(model, read)
    del plain.superposition, plain._modules[STATE]
    for name in (*DERIVED, *inspect.get_annotations(type(model)._kind)):
        vars(plain).pop(name, None)
    plain.__class__ = type(model)._plain
    for layer in own:
        for name, value in read[layer.path].items():
            has_base = name in layer.bound and layer.base(name) is not None
            _assign(layer, name, value)
            if has_base:
                learned = joined(layer.path, f"bases.{name}") in held
                layer._parameters[name].requires_grad_(learned)
        layer.unsuperpose()
    for name, parameter in plain.named_parameters(remove_duplicate=False):
        if name in held or name in kinds:
            parameter.requires_grad_(name in held or kinds[name] == TRAINED)
    return plain


@torch.no_grad()
def read_out(model: Superposed, task: int | None) -> dict[str, dict[str, Any]]:
    """For each layer the tensors of the plain layer: of a task, or of None, as they stand.

    As they stand, a weight with a base is the base, itself, because it may be tied to another.
    """
    view = None if task is None else model.view_of(task)
    starts = model.private_state.starts() if task is None else {}
    found: dict[str, dict[str, Any]] = {}
    for layer in model.superposed_layers:
        shifted = ["bias"] if layer.acts.bias else []
        names = dict.fromkeys([*layer.bound, *layer.private, *shifted])
        read = found[layer.path] = {}
        for name in names:
            if view is not None:
                read[name] = layer.read(name, view.layers[layer.path])
            else:
                base = layer.base(name)
                start = starts[layer.path].get(name) if layer.path in starts else None
                stored = layer.stored(name) if start is None else start
                read[name] = stored if base is None else base
    return found


def _assign(layer: Layer, name: str, value: Any) -> None:
    """A new parameter, because a weight tied to another (an embedding) is no longer the same."""
    stored = layer.stored(name)
    if isinstance(value, nn.Parameter):  # the base, or a layer's own
        value = nn.Parameter(full(value), value.requires_grad) if is_quantised(value) else value
        layer._parameters[name] = value
    elif isinstance(stored, nn.Parameter) or (stored is None and name in layer._parameters):
        quantised = stored is not None and is_quantised(stored)
        learns = stored is None or stored.requires_grad or quantised or name in layer.private
        layer._parameters[name] = (
            None if value is None else nn.Parameter(value.detach().clone(), learns)
        )
    elif value is not None:
        layer._buffers[name] = value.detach().clone()


def _warn_of_biases(model: Superposed, read: dict[str, dict[str, Tensor]]) -> None:
    """Centring by task gives a bias to layers that have none, which other code may leave out."""
    new = [
        joined(layer.path, "bias")
        for layer in model.superposed_layers
        if read[layer.path].get("bias") is not None and layer.stored("bias") is None
    ]
    if new:
        warnings.warn(
            f"{new[0]}{f' and {len(new) - 1} more' if len(new) > 1 else ''} is new: the layer had "
            "no bias, and centre='task' needs one. An architecture without it (from_pretrained, "
            "merged adapters) computes something else with these weights: use centre='rows' where "
            "that is needed",
            stacklevel=3,
        )


def _copied(net: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(net)
    except RuntimeError as error:
        raise SuperposeError(
            f"{type(net).__name__} cannot be copied ({error}): make pruned or weight-normed layers "
            "plain first, with torch.nn.utils.prune.remove or remove_weight_norm"
        ) from error


def _check_plain(net: nn.Module, kind: type[Superposed]) -> None:
    """Refuse a network that is superposed, and names that a superposed model needs."""
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
    meta = next((name for name, p in net.named_parameters() if p.is_meta), None)
    if meta is not None:
        raise SuperposeError(
            f"{meta} is on the meta device, without numbers: load the network's weights first"
        )
    if "forward" in vars(net):
        raise SuperposeError(
            f"{type(net).__name__} has a forward set on it, which would run instead of that of the "
            "superposed model: remove it, or put the network inside a module of its own"
        )
    parts = [part for part in kind.__mro__ if part not in nn.Module.__mro__]
    every = {name for part in parts for name in (*vars(part), *inspect.get_annotations(part))}
    own = [name for name in sorted(every) if not name.startswith("_")]
    taken = [n for n in own if hasattr(net, n) and not hasattr(nn.Module, n) and n[0] != "_"]
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


def _check_statistics(model: Superposed) -> None:
    """Refuse, with a base, running statistics that all tasks would share, and change."""
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None and not isinstance(module, Layer):
            raise SuperposeError(
                f"skip: {name!r} keeps running statistics, and with a base every task would change "
                "those of all: take it out of skip, so that each task has its own"
            )


def _check_real(options: Options) -> None:
    given = {"base": options.base, "rank": options.rank, "centre": options.centre}
    for option, value in given.items():
        if value and value != ROWS:
            raise SuperposeError(
                f"{option}={value!r} does not go with a family that makes the network "
                "complex-valued: use 'phase', which is complex superposition for a real network"
            )


def _check_arguments(net: nn.Module, batch_dim: BatchDim) -> None:
    known = inspect.signature(net.forward).parameters
    if not isinstance(batch_dim, Mapping) or any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    unknown = [name for name in batch_dim if name not in known and name != "return"]
    if unknown:
        raise SuperposeError(
            f"batch_dim: forward of {type(net).__name__} has no argument {unknown[0]!r}; it has "
            f"{', '.join(known)}, and 'return'"
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
