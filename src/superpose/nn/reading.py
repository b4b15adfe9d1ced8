"""A layer's tensors as the plain layer of a task has them, and as a network reads them.

A network may use a tensor without calling its layer, as in `F.linear(x, self.qkv.weight)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from superpose.nn.additions import added_to
from superpose.nn.binding import bound_weight
from superpose.nn.centring import shifted
from superpose.nn.recomputing import current
from superpose.nn.selection import Selected, Tasks

if TYPE_CHECKING:
    from superpose.nn.layer import Layer


def read_out(layer: Layer, task: int) -> dict[str, Tensor]:
    """What a plain layer needs to do what this one does for a task: W C(k), private tensors."""
    own = {name: part.of(task) for name, part in layer.private.items()}
    return plain_tensors(layer, layer.select(Tasks([task], None), own))


def plain_tensors(layer: Layer, selected: Selected) -> dict[str, Tensor]:
    """The same for what is selected."""
    own = [name for name in selected.private if added_to(layer, name) is None]
    names = dict.fromkeys((*own, *selected.contexts, *(["bias"] if selected.means else [])))
    return {name: plain_tensor(layer, selected, name) for name in names}


def plain_tensor(layer: Layer, selected: Selected, name: str) -> Tensor:
    """One of them: W₀ + W C(k) + B A, or b − W C(k) μ if the input is centred."""
    if name in selected.contexts:
        return bound_weight(layer, selected, name)
    own: Tensor = selected.private[name] if name in selected.private else layer.stored(name)
    return own if name != "bias" else shifted(layer, selected, own)


def plain_with(layer: Layer, tensors: dict[str, Tensor]) -> Any:
    """A plain layer that shares everything with this one but these tensors."""
    plain = layer.plain_class.__new__(layer.plain_class)
    vars(plain).update(vars(layer) | tensors)
    return plain


def plain_forward(layer: Layer, selected: Selected, *inputs: Any, **options: Any) -> Any:
    """What the plain layer does, on the tensors of one task."""
    plain = plain_with(layer, plain_tensors(layer, selected))
    return layer.plain_class.forward(plain, *inputs, **options)


def holder(layer: nn.Module, name: str) -> dict[str, Any] | None:
    """Where a layer keeps a tensor: with its parameters, or, in a replica, as an attribute."""
    if name in layer._parameters:
        return layer._parameters
    return vars(layer) if name in vars(layer) else None


def of_active_task(name: str) -> Any:
    """A layer's tensor of this name; while a superposed model runs, what the active task has of it.

    So a network that does not call a layer, but uses its weight, uses W C(k) and private biases. In
    a mixed batch there is no such tensor: its shape and type can be looked at, it has no values.
    """

    def get(layer: Any) -> Any:
        selection = current(layer)
        selected = None if selection is None else selection.layers.get(vars(layer).get("path"))
        if selection is None or selected is None:
            return own(layer)
        shifted = name == "bias" and bool(selected.means)  # by what the mean would have given
        if name not in selected.contexts and name not in selected.private and not shifted:
            return own(layer)
        if selection.rows is None:
            return plain_tensor(layer, selected, name)
        stored = selected.private[name][0] if name in selected.private else own(layer)
        like = torch.empty(0) if stored is None else stored
        return torch.empty_like(like, device="meta")  # no one tensor is every row's

    def own(layer: Any) -> Any:
        place = holder(layer, name)
        return nn.Module.__getattr__(layer, name) if place is None else place[name]

    def put(layer: Any, value: Any) -> None:  # as an attribute: replicas have no parameters
        vars(layer)[name] = value

    return property(get, put)
