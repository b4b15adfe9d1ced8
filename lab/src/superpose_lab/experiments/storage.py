"""Bytes that many fine-tunes take to store, with everything that reading one out needs."""

import copy

import torch
from torch import Tensor, nn

from superpose import Superposed
from superpose_lab.networks.adapters import Adapted

SCALE = 4  # bytes of the number that a rounded row is multiplied with


def stored(net: nn.Module, model: nn.Module, tasks: int, learning: int) -> dict[str, int]:
    """Bytes shared by all tasks, of each task, and in total.

    A model that is neither superposed nor adapted is separate networks, which share what is frozen.
    `learning` numbers are needed to learn further tasks (a projection's matrices), not to run those
    learned; they are beside the total.
    """
    whole = _bytes(net)
    if isinstance(model, Superposed):
        cost = model.cost()
        shared, each = cost.shared_bytes, cost.private_bytes_per_task
    elif isinstance(model, Adapted):
        shared, each = whole, _bytes(model.statistics[0]) + model.learned[0].nbytes
    else:
        shared = sum(p.nbytes for p in net.parameters() if not p.requires_grad)
        each = whole - shared
    return {
        "network": whole,
        "shared": shared,
        "per_task": each,
        "total": shared + tasks * each,
        "learning": 4 * learning,
    }


def _bytes(net: nn.Module) -> int:
    tensors = net.state_dict(keep_vars=True).values()  # a shared tensor counts once
    return sum({id(tensor): tensor.nbytes for tensor in tensors}.values())


def round_weights(model: nn.Module, bits: int) -> tuple[nn.Module, int] | None:
    """A copy with every matrix that was learned in so many bits; and the bytes that this saves.

    That is the superposed weight and the private matrices of tasks, or the adapters; the pretrained
    network stays as it is. None for models that have neither.
    """
    if not isinstance(model, Superposed | Adapted):
        return None
    model = copy.deepcopy(model)
    saved = 0
    with torch.no_grad():
        for weight in _learned(model):
            rows = _by_scale(weight)  # (scales, numbers)
            rows.copy_(rounded(rows, bits))
            saved += weight.nbytes - weight.numel() * bits // 8 - SCALE * len(rows)
    return model, saved


def _learned(model: Superposed | Adapted) -> list[Tensor]:
    if isinstance(model, Adapted):
        private = [dict(model.named_of(task)) for task in range(len(model.learned))]
        weights: list[Tensor] = []
    else:
        private = [model.private_tensors(task) for task in model.tasks]
        weights = [model.get_parameter(name) for name in model.summary().superposed]
    tensors = [*dict.fromkeys(weights), *(tensor for each in private for tensor in each.values())]
    return [tensor.detach() for tensor in tensors if tensor.ndim > 1]


def _by_scale(weight: Tensor) -> Tensor:
    """A view (scales, numbers): an output of a convolution, or a direction of a thin matrix."""
    outputs, *inside = weight.shape
    return weight.mT if len(inside) == 1 and outputs > inside[0] else weight.flatten(1)


def rounded(matrix: Tensor, bits: int) -> Tensor:
    """Each row as whole numbers times a scale: |whole| < 2^(bits − 1).

    >>> rounded(torch.tensor([[1.0, 0.26, 0.0]]), 2)
    tensor([[1., 0., 0.]])
    """
    most = 2 ** (bits - 1) - 1
    scale = matrix.abs().amax(1, keepdim=True).clamp_min(torch.finfo(matrix.dtype).tiny) / most
    return (matrix / scale).round() * scale
