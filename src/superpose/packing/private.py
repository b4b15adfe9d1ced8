"""What each packed model keeps for itself: tensors that are the model's, and low-rank parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed
from superpose.packing.weights import Weight

DOWN, UP = "_down", "_up"  # endings of A and B, beside the name of a weight
ROUNDED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""The types of numbers that files may hold, finest first."""


def set_private(packed: Superposed, name: Name, net: nn.Module) -> None:
    """Give a task the biases, norms and whole layers of a model that are private."""
    given = _tensors(net)
    for key, tensor in packed.private_tensors(name).items():
        if key in given:
            tensor.detach().copy_(given[key])


def part(weight: Weight, own: dict[str, Tensor]) -> Tensor | None:
    """B·A of a task's private tensors, as the layout's `to_matrix`; None if it has none."""
    if weight.full_name + UP not in own:
        return None
    up, down = (own[weight.full_name + ending].detach().double() for ending in (UP, DOWN))
    return up @ down


def set_part(weight: Weight, own: dict[str, Tensor], down: Tensor, up: Tensor) -> None:
    """Write A (…, rank, inputs) and B (…, outputs, rank) to a task's private tensors."""
    for ending, value in ((DOWN, down), (UP, up)):
        tensor = own[weight.full_name + ending].detach()
        tensor.copy_(value.view(tensor.shape))


def check_stored(packed: Superposed, name: Name, net: nn.Module) -> None:
    """Refuse a model whose private tensors are not the task's, up to the rounding of files."""
    given = _tensors(net)
    for key, tensor in packed.private_tensors(name).items():
        if key in given and not _is_rounded(given[key], tensor.detach()):
            raise another_model(name, key)


def is_part(weight: Weight, own: dict[str, Tensor], product: Tensor) -> bool:
    """Whether a task's B·A is this product, up to the rounding of files."""
    kept = [own[weight.full_name + ending].detach() for ending in (DOWN, UP)]
    finest = kept[0].dtype
    coarser = (one for one in reversed(ROUNDED) if torch.finfo(one).eps > torch.finfo(finest).eps)
    held = (one for one in coarser if all(torch.equal(x.to(one).to(finest), x) for x in kept))
    slack = 4 * torch.finfo(next(held, finest)).eps + 1e-5
    difference: Any = part(weight, own)
    return bool((difference - product).norm() <= slack * product.norm())


def another_model(name: Name, tensor: str) -> SuperposeError:
    """The error for a model that is not the stored one."""
    return SuperposeError(
        f"model {name!r}: {tensor} is not the one that is stored, so this is another model, or the "
        "packed one was trained further since: give the model that was packed, or remove "
        f"{name!r} by its name alone"
    )


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    parameters = dict(net.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(net.named_buffers(remove_duplicate=False))}


def _is_rounded(given: Tensor, stored: Tensor) -> bool:
    if not stored.is_floating_point():
        return torch.equal(given.to(stored), stored)
    slack = torch.finfo(stored.dtype).eps
    rounded = (given.to(dtype).to(stored) for dtype in ROUNDED)
    return any(torch.allclose(one, stored, rtol=slack, atol=0.0) for one in rounded)
