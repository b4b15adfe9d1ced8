"""Methods `sum` and `delta`: W = Σₖ (Wₖ − W₀ − Bₖ·Aₖ)·C(k)⁻¹, one term for each model.

Without a base W₀ is zero, which is the paper's equation 1; without a rank there is no Bₖ·Aₖ, which
is the low-rank matrix that is nearest to the difference.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed
from superpose.packing.private import part, set_part, set_private, tensors_of
from superpose.packing.sources import Sources
from superpose.packing.weights import Weight, bound_weights

ROUNDED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # in files, finest first


def add(packed: Superposed, name: Name, net: nn.Module) -> None:
    """Store a model in a task that is there already: its term, and its private tensors."""
    packed.begin(name)
    set_private(packed, name, net)
    own = packed.private_tensors(name)
    for weight in bound_weights(packed):
        if part(weight, own) is not None:
            set_part(weight, own, *_nearest_part(packed, weight, net))
    _add_terms(packed, name, net, +1)


def subtract(packed: Superposed, name: Name, net: nn.Module) -> None:
    """Take the term of a model out again, if it is the one that is stored."""
    own, given = packed.private_tensors(name), tensors_of(net)
    other = [key for key, t in own.items() if key in given and not _is_rounded(given[key], t)]
    for weight in bound_weights(packed):
        stored = part(weight, own)
        if stored is not None:
            down, up = _nearest_part(packed, weight, net)
            product = up @ down
            if (stored - product).norm() > 0.04 * product.norm():  # bfloat16 makes it up to 0.03
                other.append(weight.full_name)
    if other:
        raise SuperposeError(
            f"model {name!r}: {other[0]} is not the one that is stored, so this is another model, "
            "or the packed one was trained further since: give the model that was packed, or "
            f"remove {name!r} by its name alone"
        )
    _add_terms(packed, name, net, -1)


def mean(sources: Sources) -> nn.Module:
    """The model of the mean weights, the base of `delta` where none is given."""
    total: dict[str, Tensor] = {}
    for name in sources.models:
        for key, tensor in sources.open(name).state_dict().items():
            total[key] = total.get(key, 0.0) + tensor.double()
    net = copy.deepcopy(sources.first())
    net.load_state_dict({key: value / len(sources.models) for key, value in total.items()})
    return net


def difference(weight: Weight, net: nn.Module) -> Tensor:
    """Wₖ − W₀, as the layout's `to_matrix`."""
    own, base = net.get_parameter(weight.full_name).detach().double(), weight.base
    return weight.bound.layout.to_matrix(own if base is None else own - base.double())


def nearest_part(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A and B of the matrix of this rank that is nearest to one (…, outputs, inputs).

    >>> down, up = nearest_part(torch.diag(torch.tensor([3.0, 2.0, 1.0])), rank=2)
    >>> (up @ down).round(decimals=4) + 0.0
    tensor([[3., 0., 0.],
            [0., 2., 0.],
            [0., 0., 0.]])
    """
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    root = values[..., :rank].sqrt()
    return root.unsqueeze(-1) * right[..., :rank, :], left[..., :rank] * root.unsqueeze(-2)


def term(weight: Weight, net: nn.Module, own: dict[str, Tensor]) -> Tensor:
    """Wₖ − W₀ − Bₖ·Aₖ of a task with these private tensors, as the layout's `to_matrix`."""
    rest, beside = difference(weight, net), part(weight, own)
    return rest if beside is None else rest - beside


def _nearest_part(packed: Superposed, weight: Weight, net: nn.Module) -> tuple[Tensor, Tensor]:
    return nearest_part(difference(weight, net), packed.superposition.options.rank)


def _is_rounded(given: Tensor, stored: Tensor) -> bool:
    """Whether a tensor is the stored one, which may have been in a file of fewer bits."""
    if not stored.is_floating_point():
        return torch.equal(given.to(stored), stored)
    slack = torch.finfo(stored.dtype).eps
    rounded = (given.to(dtype).to(stored) for dtype in ROUNDED)
    return any(torch.allclose(one, stored, rtol=slack, atol=0.0) for one in rounded)


@torch.no_grad()
def _add_terms(packed: Superposed, name: Name, net: nn.Module, sign: int) -> None:
    number, own = packed.superposition.number(name), packed.private_tensors(name)
    for weight in bound_weights(packed):
        rest = term(weight, net, own)
        unbound = weight.context(number, rest).unbind_weight(rest)
        stored = weight.stored
        stored.copy_(stored.double() + sign * weight.bound.layout.from_matrix(unbound))
