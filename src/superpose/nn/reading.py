"""Tensors of a layer that are read without calling it, as in `F.linear(x, self.qkv.weight)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from superpose.nn.layer import holder
from superpose.nn.selection import active


def of_active_task(name: str) -> Any:
    """A layer's tensor of this name; while a superposed model runs, what the active task has of it.

    So a network that does not call a layer, but uses its weight, uses W C(k) and private biases. In
    a mixed batch there is no such tensor: its shape and type can be looked at, it has no values.
    """

    def get(layer: Any) -> Any:
        selection = active.selection
        selected = None if selection is None else selection.layers.get(vars(layer).get("path"))
        if selection is None or selected is None:
            return own(layer)
        if name not in selected.contexts and name not in selected.private:
            return own(layer)
        if selection.rows is None:
            return layer.plain_tensor(selected, name)
        stored = selected.private[name][0] if name in selected.private else own(layer)
        return torch.empty_like(stored, device="meta")  # no one tensor is every row's

    def own(layer: Any) -> Any:
        place = holder(layer, name)
        return nn.Module.__getattr__(layer, name) if place is None else place[name]

    def put(layer: Any, value: Any) -> None:  # as an attribute: replicas have no parameters
        vars(layer)[name] = value

    return property(get, put)
