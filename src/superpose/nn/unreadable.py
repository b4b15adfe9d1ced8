"""A layer's tensor that a network reads by itself in a direct batch, where no one tensor is right.

Its shape and type can be looked at; anything else is an error that names the layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from superpose.errors import SuperposeError

METADATA = {
    *(
        vars(torch._C.TensorBase)[name].__get__
        for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_sparse")
    ),
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.nelement,
    Tensor.stride,
    Tensor.element_size,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.__len__,
}


class Unreadable(Tensor):
    """Has the shape and the type of a layer's tensor, and no numbers."""

    told: str

    @classmethod
    def of(cls, like: Tensor, path: str, name: str) -> Unreadable:
        """Stand in for a tensor of a layer."""
        with torch._C._DisableTorchDispatch():  # no tensor of `torch.export`'s
            empty = torch.empty(like.shape, dtype=like.dtype, device="meta")
        made: Unreadable = empty.as_subclass(cls)
        made.told = f"{path}.{name}" if path else name
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse whatever needs numbers."""
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        given = tree_leaves((args, kwargs))  # `torch.cat` is given a list
        told = next((x.told for x in given if isinstance(x, cls)), "")
        raise SuperposeError(
            f"{told} is read without calling its layer, and in a direct batch each row has its "
            "own: this network's mixed batches are computed grouped, model.mixed = 'grouped'"
        )
