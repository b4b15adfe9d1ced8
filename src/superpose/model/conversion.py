"""A network put in superposition, and back again: `superpose` and `unsuperpose`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from superpose import contexts
from superpose.contexts import Family
from superpose.cost import size
from superpose.errors import SuperposeError
from superpose.model.batch import BatchDim
from superpose.model.superposed import Superposed, layers, superposed_class
from superpose.model.tasks import WHOLE, Name, Superposition, check_names, several
from superpose.nn.complex import complexify
from superpose.nn.convert import AUTO, Conversion, convert, restore
from superpose.nn.layer import Layer
from superpose.nn.patterns import FamilyByLayer, family_by_layer, several_families
from superpose.nn.private import PrivateState

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
) -> Superposed:
    """A copy of `net` that holds many models in one set of weights, one for each task.

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
    labels: list[Name] = []
    if isinstance(tasks, bool) or not isinstance(tasks, (*WHOLE, Iterable)):
        raise SuperposeError(
            f"tasks={tasks!r}: give a number of tasks, or names, as in ['cats', 'dogs']"
        )
    labels += range(tasks) if isinstance(tasks, WHOLE) else several("tasks", tasks)
    check_names(labels)
    return build(
        net,
        _with_learning(family_by_layer(family), learnable),
        {label: number for number, label in enumerate(labels)},
        seed,
        Conversion(
            private,
            several("private_layers", private_layers),
            several("skip", skip),
            conv,
            dict(batch_dim) if isinstance(batch_dim, Mapping) else batch_dim,
            mixed=mixed,
        ),
        Superposed,
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
        model = complexify(model, seed)
    _check_arguments(net, conversion.batch_dim)
    convert(model, family, seed, conversion)
    plain: Any = type(model)
    model.__class__ = superposed_class(plain, kind)  # type: ignore[arg-type]
    assert isinstance(model, kind)
    model.superposition = Superposition(family, seed, names, conversion, size([net]))
    private = PrivateState.put_into(layers(model))
    if start:
        private.add(names.values())
    return model


def unsuperpose(model: nn.Module, task: Name | None = None) -> nn.Module:
    """The plain module again: as it stands in the weights, or the model of one task read out.

    With a task, the result computes what model(x, task=task) does: its weights are W C(k), and the
    task's private parameters are its own. A complex-valued network stays complex-valued.
    """
    if not isinstance(model, Superposed):
        raise SuperposeError(f"{type(model).__name__} is not superposed: there is nothing to undo")
    plain: nn.Module = copy.deepcopy(model)
    number = None if task is None else model.superposition.number(task)
    del plain.superposition
    for name in inspect.get_annotations(type(model)._kind):
        vars(plain).pop(name, None)
    plain.__class__ = type(model)._plain
    for layer, stored in zip(layers(plain), layers(model), strict=True):
        _assign(layer, stored.in_all() if number is None else stored.read_out(number))
        layer.unsuperpose()
    restore(plain)
    return plain


def _assign(layer: Layer, values: dict[str, Tensor]) -> None:
    """New parameters, because a weight tied to another (an embedding) is no longer the same."""
    for name, value in values.items():
        own = getattr(layer, name)
        value = value.detach().clone()
        if isinstance(own, nn.Parameter):
            setattr(layer, name, nn.Parameter(value, own.requires_grad))
        else:
            own.copy_(value)


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
