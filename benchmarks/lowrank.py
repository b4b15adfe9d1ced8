"""Nets compressed each by itself, to so few numbers that all of them take what one takes."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WHOLE = (
    16  # layers with no more outputs stay as they are: they are small, and all is read from them
)


@torch.no_grad()
def low_rank(
    net: nn.Module, inputs: Any, share: int, base: nn.Module | None = None
) -> tuple[nn.Module, int]:
    """The net with weights of low rank, a `share`-th of their numbers each, and all its numbers.

    A weight W, or its difference from that of a base, becomes U Uᵀ W: U spans the directions in
    which its outputs are largest on the inputs, so it is the best of its rank there. What the net
    has in common with the base is not counted.
    """
    small = copy.deepcopy(net)
    layers = {n: m for n, m in net.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    changes = {f"{name}.weight": _change(name, layer, base) for name, layer in layers.items()}
    grams = _outputs(net, layers, changes, inputs)
    numbers = 0
    for name, tensor in small.state_dict().items():
        if base is not None and torch.equal(tensor, base.state_dict()[name]):
            continue
        if name not in grams or len(tensor) <= WHOLE:
            numbers += tensor.numel()
            continue
        outputs, fan_in = changes[name].flatten(1).shape
        rank = max(1, tensor.numel() // (share * (outputs + fan_in)))
        top = torch.linalg.eigh(grams[name]).eigenvectors[:, -rank:].to(tensor)  # (outputs, rank)
        kept = (top @ top.T @ changes[name].flatten(1)).view(tensor.shape)
        tensor.copy_(tensor - changes[name] + kept)
        numbers += rank * (outputs + fan_in)
    return small, numbers


def _change(name: str, layer: Any, base: nn.Module | None) -> Tensor:
    weight: Tensor = layer.weight
    return weight if base is None else weight - base.get_parameter(f"{name}.weight")


def _outputs(
    net: nn.Module, layers: dict[str, Any], changes: dict[str, Tensor], inputs: Any
) -> dict[str, Tensor]:
    """Y Yᵀ (outputs, outputs) of what each change gives on what its layer sees."""
    grams: dict[str, Tensor] = {}

    def noting(name: str) -> Any:
        def note(layer: Any, given: tuple[Tensor, ...]) -> None:
            if isinstance(layer, nn.Conv2d):
                y = F.conv2d(given[0], changes[name], None, layer.stride, layer.padding)
                y = y.movedim(1, -1)
            else:
                y = F.linear(given[0], changes[name])
            rows = y.reshape(-1, y.shape[-1]).double()
            grams[name] = grams.get(name, 0) + rows.T @ rows

        return note

    hooks = [m.register_forward_pre_hook(noting(f"{n}.weight")) for n, m in layers.items()]
    net(**inputs) if isinstance(inputs, dict) else net(inputs)
    for hook in hooks:
        hook.remove()
    return grams
