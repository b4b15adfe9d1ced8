"""Tensors in fewer bits, for files: half precision, or eight bits with a scale for each output."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from superpose.errors import SuperposeError

SCALE = ":scale"  # the name of a tensor and this: the scales of its outputs
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8)
LARGEST = 127


def reduced(
    tensors: dict[str, Tensor],
    dtype: torch.dtype,
    input_dims: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> dict[str, Tensor]:
    """The real numbers of these tensors as `dtype`.

    If that is int8, each output has a scale. `input_dims` are the dimensions that belong to one
    output, where they are not all but the first. Vectors stay as they are, and so do tensors that
    have no scale: an infinite number, as in a mask, is not a share of the largest.

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
            found[name] = _within(name, tensor, dtype)
        elif tensor.ndim < 2 or not tensor.numel() or not tensor.isfinite().all():
            found[name] = tensor
        else:
            eight = eight_bits(tensor, input_dims.get(name))
            found |= {name: eight[0], name + SCALE: eight[1]}
    return found


def _within(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor as `dtype`, none of whose numbers is too large for it."""
    found = tensor.to(dtype)
    if not torch.equal(found.isinf(), tensor.isinf()):
        largest = tensor[~tensor.isinf()].abs().max().item()
        raise SuperposeError(
            f"dtype={dtype}: {name} has {largest:.3g} in it, and "
            f"{torch.finfo(dtype).max:.3g} is the largest there is: use torch.bfloat16"
        )
    return found


def eight_bits(tensor: Tensor, input_dims: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    """Whole numbers q within ±127, and scales s: the tensor is q · s, rounded.

    There is a scale for each row, (rows,), or, for other dimensions of inputs, a tensor of scales
    that has size 1 in those.
    """
    every = tuple(range(1, tensor.ndim))
    dims = every if input_dims is None else tuple(sorted(dim % tensor.ndim for dim in input_dims))
    numbers = tensor.detach().float()
    scale = numbers.abs().amax(dims, keepdim=True) / LARGEST
    q = (numbers / scale.clamp_min(torch.finfo(torch.float32).tiny)).round().to(torch.int8)
    return q, scale.flatten() if dims == every else scale


def restored(tensors: dict[str, Tensor], wanted: dict[str, torch.dtype]) -> dict[str, Tensor]:
    """The tensors in the types that are wanted of them, by name; others are left as they are."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        scale = tensors.get(name + SCALE)
        if name.endswith(SCALE) and name.removesuffix(SCALE) in tensors:
            continue
        if scale is not None:
            by_row = scale.view(-1, *[1] * (tensor.ndim - 1)) if scale.ndim == 1 else scale
            tensor = tensor.float() * by_row
        real = tensor.is_floating_point()
        found[name] = tensor.to(wanted[name]) if real and name in wanted else tensor
    return found
