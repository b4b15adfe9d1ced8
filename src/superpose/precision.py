"""Tensors in fewer bits, for files: half precision, or eight bits with a scale for each output."""

from __future__ import annotations

import torch
from torch import Tensor

from superpose.errors import SuperposeError

SCALE = ":scale"  # the name of a tensor and this: the scales of its rows
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8)
LARGEST = 127


def reduced(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The real numbers of these tensors as `dtype`.

    If that is int8, vectors stay as they are, and so do tensors that have no scale: an infinite
    number, as in a mask, is not a share of the largest.

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
            found |= {name: (eight := eight_bits(tensor))[0], name + SCALE: eight[1]}
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
