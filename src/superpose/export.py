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
from superpose.model import Superposed
from superpose.nn import View
from superpose.nn.private import Private

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
        view = model.view(model.tasks)
        tables, self.structure = tree_flatten(
            {p: one._replace(each=()) for p, one in view.layers.items()}
        )
        self.tables = nn.ParameterList(nn.Parameter(t.detach().clone(), False) for t in tables)
        self.network = _without_private_tensors(model)

    def run(self, task: Tensor, *inputs: Any, **options: Any) -> Any:
        """The forward pass of one task (), or of one per row (rows,)."""
        if not isinstance(task, Tensor):
            raise SuperposeError(
                f"task={task!r}: a program takes tensors; give torch.tensor(number)"
            )
        if task.ndim and self.network.mixed != "direct":
            raise SuperposeError(
                "a program of a mixed batch computes it directly, and this model's are grouped: "
                "set model.mixed = 'direct' if sp.check_mixed says that it is right, or export it "
                "with one task for the batch"
            )
        place = self.places.index_select(0, task.reshape(-1))
        rows = [table.index_select(0, place) for table in self.tables]
        own = rows if task.ndim else [row.squeeze(0) for row in rows]
        view = View(tree_unflatten(own, self.structure), task if task.ndim else None)
        return self.network.run(view, *inputs, **options)


def exportable(model: nn.Module) -> Exportable:
    """A module for `torch.export`: its `task` is data, so that one program has all tasks in it.

    It is called as the model is, but `task` is a tensor of numbers: () for one task, (rows,) for
    one per row where mixed batches are direct. It is in evaluation mode, and keeps contexts and
    private tensors of all tasks as they are now, in tables; the stored weights are the model's.

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
    for layer in bare.superposed_layers:
        for name in layer.private:
            for kept in (layer._parameters, layer._buffers):
                if name in kept:  # as an attribute it is no part of a program
                    vars(layer)[name] = kept.pop(name)
    bare.private_state = Private(bare.superposed_layers, [], False)
    return bare
