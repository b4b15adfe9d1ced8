"""One program for all tasks: a superposed model as `torch.export` and ONNX can take it."""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from superpose.errors import SuperposeError
from superpose.model import Superposed, layers, ways
from superpose.model.batch import Batch
from superpose.nn.convert import WAYS
from superpose.nn.private import PrivateState
from superpose.nn.selection import Selection

UNKNOWN = -1


class Exportable(nn.Module):
    """The network of a superposed model, whose task is a tensor like any other input.

    `tables` has the contexts and private tensors of all tasks, (tasks, …), and `places` where those
    of a task are: by its name if that is a whole number, as for the model, else by its number. The
    stored weights are the model's own.
    """

    places: Tensor
    tables: nn.ParameterList
    network: Superposed

    def __init__(self, model: Superposed) -> None:
        super().__init__()
        names = list(model.superposition.names.items())
        found = {n: place for place, (name, n) in enumerate(names) if isinstance(name, str)}
        found |= {name: place for place, (name, _) in enumerate(names) if isinstance(name, int)}
        places = torch.tensor([found.get(task, UNKNOWN) for task in range(max(found) + 1)])
        self.register_buffer("places", places.to(next(model.parameters()).device))
        tables, self.structure = tree_flatten(model.selection(model.tasks).layers)
        self.tables = nn.ParameterList(nn.Parameter(t.detach().clone(), False) for t in tables)
        self.network = _without_private_tensors(model)

    def run(self, task: Tensor, *inputs: Any, **options: Any) -> Any:
        """The forward pass of one task (), of one per row (rows,), or per token (1, tokens)."""
        if not isinstance(task, Tensor):
            raise SuperposeError(
                f"task={task!r}: a program takes tensors; give torch.tensor(number)"
            )
        place = self.places.index_select(0, task.reshape(-1))
        rows = [table.index_select(0, place) for table in self.tables]
        own = rows if task.ndim else [row.squeeze(0) for row in rows]
        selection = Selection(task, tree_unflatten(own, self.structure))
        network = self.network
        if not task.ndim:
            return network.pass_of(selection._replace(row=None), inputs, options)
        tokens = task.ndim == 2
        batch = Batch.of(network, task.shape[-1], tokens, (inputs, options))
        known = network.superposition.ways.items()
        wanted = (network.mixed, batch.kind)
        alike = [way for (*kind, _), way in known if tuple(kind) == wanted]
        found = max(alike, key=lambda way: WAYS.index(way.name), default=None)
        if found is None or found.name == "grouped":
            told = "it is not known yet" if found is None else f"it is {found}"
            raise SuperposeError(
                "a program of a mixed batch has to run it directly or mapped, which is found out "
                f"with the first one, and {told}: run model.eval()(…, task=[…]) once before "
                "exportable(model), or export it with one task for the batch"
            )
        if found.name == "mapped":
            return ways.mapped(network, selection, batch, found.dims)[0]
        return network.pass_of(selection, inputs, options)


def exportable(model: nn.Module) -> Exportable:
    """A module for `torch.export`: its `task` is data, so that one program has all tasks in it.

    It is called as the model is, but `task` is a tensor of numbers: () for one task, (rows,) for
    one per row, (1, tokens) for one per token. It is in evaluation mode, and keeps contexts and
    private tensors of all tasks as they are now, in tables; the stored weights are the model's.
    Where rows of different tasks are mapped, `torch.export` fixes their number.

    >>> from superpose import superpose
    >>> model = superpose(nn.Linear(4, 2), tasks=["cats", "dogs"]).eval()
    >>> x, task = torch.ones(3, 4), torch.tensor([1, 0, 1])
    >>> expected = model(x, task=["dogs", "cats", "dogs"])
    >>> program = torch.export.export(exportable(model), (x,), {"task": task})
    >>> torch.equal(program.module()(x, task=task), expected)
    True
    """
    if not isinstance(model, Superposed):
        raise SuperposeError(
            f"{type(model).__name__} is not superposed: torch.export takes it as it is"
        )
    paired = next((layer.path for layer in layers(model) if layer.pairing is not None), None)
    if paired is not None:
        raise SuperposeError(
            f"layer {paired!r} is kept in the weight of another layer for each task, so that a "
            "program would need a weight for each: pack without random_pairing, or export "
            "unpack(packed, task)"
        )
    superposed: Any = type(model)
    made: Exportable = _class_like(superposed)(model)
    return made.eval()


@functools.cache
def _class_like(superposed: Any) -> Any:
    def forward(self: Exportable, *inputs: Any, task: Tensor, **options: Any) -> Any:
        return self.run(task, *inputs, **options)

    forward.__signature__ = inspect.signature(superposed.forward)  # type: ignore[attr-defined]
    return type(f"Exportable{superposed.__name__}", (Exportable,), {"forward": forward})


def _without_private_tensors(model: Superposed) -> Superposed:
    """A copy that shares the stored weights, and keeps nothing of what the tables have."""
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    bare = copy.deepcopy(model, memo)
    for layer in layers(bare):
        for name in layer.private:
            for kept in (layer._parameters, layer._buffers):
                if name in kept:  # as an attribute it is no part of a program
                    vars(layer)[name] = kept.pop(name)
        layer.private = {}
    PrivateState.put_into(layers(bare))
    return bare
