"""Tensors in fewer bits, for files: half precision, or eight bits with a scale for each output."""

from __future__ import annotations

import torch
from torch import Tensor

from superpose.errors import SuperposeError

SCALE = ":scale"  # the name of a tensor and this: the scales of its rows
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8)
LARGEST = 127


def reduced(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The real numbers of these tensors as `dtype`; vectors stay as they are if that is int8.

    So does a tensor with numbers that `dtype` does not reach, such as a mask with infinity in it.

    >>> list(reduced({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, torch.int8))
    ['weight', 'weight:scale', 'bias']
    """
    if dtype not in DTYPES:
        known = ", ".join(str(one) for one in DTYPES)
        raise SuperposeError(f"dtype={dtype!r}: use one of {known}")
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            found[name] = tensor
        elif dtype != torch.int8:
            fewer = tensor.to(dtype)
            found[name] = fewer if torch.equal(fewer.isinf(), tensor.isinf()) else tensor
        elif tensor.ndim < 2 or not tensor.isfinite().all():
            found[name] = tensor
        else:
            found |= {name: (eight := eight_bits(tensor))[0], name + SCALE: eight[1]}
    return found


def eight_bits(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers q within ±127, and a scale s for each row: the tensor is q · s, rounded."""
    rows = tensor.detach().float().flatten(1)
    scale = rows.abs().amax(1, keepdim=True) / LARGEST
    q = (rows / scale.clamp_min(torch.finfo(torch.float32).tiny)).round().to(torch.int8)
    return q.view(tensor.shape), scale.squeeze(1)


def restored(tensors: dict[str, Tensor], wanted: dict[str, torch.dtype]) -> dict[str, Tensor]:
    """The tensors in the types that are wanted of them, by name; others are left as they are."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        scale = tensors.get(name + SCALE)
        if name.endswith(SCALE) and name.removesuffix(SCALE) in tensors:
            continue
        if scale is not None:
            tensor = tensor.float() * scale.view(-1, *[1] * (tensor.ndim - 1))
        real = tensor.is_floating_point()
        found[name] = tensor.to(wanted[name]) if real and name in wanted else tensor
    return found
