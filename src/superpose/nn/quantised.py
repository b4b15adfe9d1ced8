"""Weights that torchao, or a library like it, has quantised: tensors of a class of its own.

They know a product, `F.linear(x, W)`, and little else. Layers that bind their input need no more;
what computes with the weight itself, W·C(k) or W·C(k)·μ, takes the numbers that it stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.nn.names import joined

if TYPE_CHECKING:
    from superpose.nn.layer import Layer


def is_quantised(tensor: Tensor) -> bool:
    """Whether it is made of other tensors, whole numbers and scales, and is not sharded."""
    kind = type(tensor)
    return hasattr(kind, "__tensor_flatten__") and not hasattr(kind, "placements")


def full(tensor: Tensor) -> Tensor:
    """The numbers that a quantised tensor stands for; any other tensor as it is."""
    if tensor.__class__ in (Tensor, nn.Parameter) or not is_quantised(tensor):
        return tensor
    if type(tensor).dequantize is not Tensor.dequantize:
        return tensor.detach().dequantize()
    unit = torch.eye(tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
    return F.linear(unit, tensor.detach()).mT.contiguous()  # packed for this product alone


def nbytes(tensor: Tensor) -> int:
    """The bytes that it takes; a quantised one, those of its whole numbers and scales."""
    if not is_quantised(tensor):
        return tensor.nbytes
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return sum(nbytes(getattr(tensor, name)) for name in names)


def is_base(module: nn.Module, name: str) -> bool:
    """A `filter_fn` for torchao: the bases of linear layers, which it does not find by itself.

    `quantize_(model, Int8WeightOnlyConfig(), filter_fn=sp.nn.is_base)` quantises what all tasks
    start from, and leaves what they learn in full: the model can be trained on.
    """
    weight = module._parameters.get("weight")
    return name.rpartition(".")[2] == "bases" and weight is not None and weight.ndim == 2


def check_learns(layer: Layer, name: str, weight: Any) -> None:
    """Refuse to train a bound weight that is quantised."""
    if is_quantised(weight):
        raise SuperposeError(
            f"{joined(layer.path, name)} is quantised ({type(weight).__name__}) and cannot learn: "
            "train first and quantise then, or quantise the base alone, as quantize_(model, "
            "config, filter_fn=sp.nn.is_base) does; to run the model as it is, call model.eval() "
            "first"
        )
