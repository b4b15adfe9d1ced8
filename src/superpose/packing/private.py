"""What each packed model keeps for itself: biases, norms, whole layers, and low-rank parts."""

from __future__ import annotations

from torch import Tensor, nn

from superpose.model import Name, Superposed
from superpose.packing.weights import Weight

DOWN, UP = "_down", "_up"  # endings of A and B, beside the name of a weight


def tensors_of(net: nn.Module) -> dict[str, Tensor]:
    """All tensors of a plain network, also under their further names."""
    parameters = dict(net.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(net.named_buffers(remove_duplicate=False))}


def set_private(packed: Superposed, name: Name, net: nn.Module) -> None:
    """Give a task the private tensors of a model."""
    given = tensors_of(net)
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
