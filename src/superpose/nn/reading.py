"""Tensors of a layer that are read without calling it, as in `F.linear(x, self.qkv.weight)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from superpose.errors import SuperposeError
from superpose.nn.layer import holder, joined
from superpose.nn.selection import active

PROPERTIES = "device dtype is_cuda is_meta is_quantized is_sparse layout ndim requires_grad shape"
METHODS = "__len__ dim element_size is_complex is_contiguous is_floating_point numel size stride"
LOOKS = {getattr(Tensor, name).__get__ for name in PROPERTIES.split()} | {
    getattr(Tensor, name) for name in METHODS.split()
}
"""What tells nothing of a tensor's values."""


class Unread(Tensor):
    """What a layer's tensor is in a batch with rows of many tasks: it can be looked at, not used.

    No one tensor is that of every row, so what is computed from it would be wrong.
    """

    tensor: str

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        """Its type, device and shape are known."""
        if function in LOOKS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*arguments, **options or {})
        read = next(one for one in tree_leaves((arguments, options)) if isinstance(one, cls))
        raise SuperposeError(
            f"the network uses {read.tensor!r} without calling the layer that it belongs to, so "
            "rows of different tasks cannot each have their own: run it once per task instead"
        )


def of_active_task(name: str) -> Any:
    """A layer's tensor of this name; while a superposed model runs, what the active task has of it.

    So a network that does not call a layer, but uses its weight, uses W C(k) and private biases.
    """

    def get(layer: Any) -> Any:
        selection = active.selection
        selected = None if selection is None else selection.layers.get(vars(layer).get("layer"))
        if selection is None or selected is None:
            return own(layer)
        if name not in selected.contexts and name not in selected.private:
            return own(layer)
        if selection.rows is not None:
            unread = own(layer).detach().as_subclass(Unread)
            unread.tensor = joined(layer.layer, name)
            return unread
        return layer.plain_tensor(selected, name)

    def own(layer: Any) -> Any:
        place = holder(layer, name)
        return nn.Module.__getattr__(layer, name) if place is None else place[name]

    def put(layer: Any, value: Any) -> None:  # as an attribute: replicas have no parameters
        vars(layer)[name] = value

    return property(get, put)
