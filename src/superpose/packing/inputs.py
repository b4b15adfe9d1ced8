"""What reaches a layer, and multiplies its weight, when rows run through a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose.contexts import Context
from superpose.errors import SuperposeError
from superpose.model import layers
from superpose.nn.binding import grouped
from superpose.nn.conv import ForwardConv
from superpose.nn.layer import Layer
from superpose.nn.linear import LinearLayer
from superpose.nn.names import joined
from superpose.packing.calibration import Rows

PLACES = 8


class Part(NamedTuple):
    """Some outputs of a bound weight, and the inputs (groups, rows, features) they multiply."""

    outputs: slice
    x: Tensor


class _Enough(Exception):  # noqa: N818 (nothing went wrong)
    """All calls of the layer were seen: the rest of the network need not run."""


@dataclass(frozen=True)
class Weight:
    """A bound weight of a packed model, and how it is found in the plain one."""

    layer: Layer
    name: str

    def __post_init__(self) -> None:
        if not self.layer.is_linear_map:
            kind = type(self.layer).__name__
            raise SuperposeError(
                f"{kind} {self.layer.path!r} is not one linear map, so it can be neither solved "
                "for nor predicted: name it in private_layers or in skip, or pack by 'sum'"
            )

    @property
    def module(self) -> str:
        """The module of the plain model whose call tells the inputs."""
        name = self.layer.path
        return name.removesuffix(".out_proj") if self.inside_attention else name

    @property
    def inside_attention(self) -> bool:
        """Whether it is the out-projection of `nn.MultiheadAttention`, which is never called."""
        return self.layer.plain_class is nn.modules.linear.NonDynamicallyQuantizableLinear

    @property
    def plain(self) -> str:
        """The tensor's name in the plain model."""
        return joined(self.layer.path, self.name)

    @property
    def tensor(self) -> nn.Parameter:
        """The bound weight itself."""
        own: nn.Parameter = self.layer.stored(self.name)
        return own

    def matrix(self, weight: Tensor) -> Tensor:
        """The weight as (groups, outputs, features)."""
        layer = self.layer
        if isinstance(layer, ForwardConv):
            return layer.to_blocks(weight).flatten(2)
        return layer.to_matrix(self.name, weight).unsqueeze(0)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        layer = self.layer
        if isinstance(layer, ForwardConv):
            return layer.from_blocks(matrix.unflatten(-1, (-1, prod(layer.kernel_size))))
        return layer.from_matrix(self.name, matrix.squeeze(0))

    def bind(self, x: Tensor, context: Context) -> Tensor:
        """C(k) x for inputs (groups, rows, features)."""
        bound = self.layer.contexts[self.name]
        context = grouped(self.layer, self.name, context.to(x.device, x.dtype))
        if bound.dim == x.shape[-1]:
            return context.bind(x if bound.groups > 1 else x[0]).view(x.shape)
        groups, rows, _ = x.shape  # only the channels are bound, the same for each position
        channels = x.unflatten(-1, (bound.dim, -1)).mT  # (groups, rows, positions, channels)
        flat = channels.reshape(groups, -1, bound.dim)
        y = context.bind(flat if bound.groups > 1 else flat[0]).view(groups, rows, -1, bound.dim)
        return y.mT.flatten(2)

    def inputs(
        self, net: nn.Module, arguments: Any, named: dict[str, Any], seed: int
    ) -> list[Part]:
        """What one call of the module multiplies this weight with."""
        layer = self.layer
        if isinstance(layer, (ForwardConv, LinearLayer)) and not self.inside_attention:
            x = arguments[0] if arguments else next(iter(named.values()))
            seen = patches(layer, x, seed) if isinstance(layer, ForwardConv) else _flat(x)
            return [Part(slice(None), seen)]
        if self.inside_attention:
            return [Part(slice(None), _flat(_attended(net, arguments, named)))]
        sides = [*arguments[:3], *(named[n] for n in ("query", "key", "value") if n in named)]
        if self.name != "in_proj_weight":
            return [Part(slice(None), _flat(sides["qkv".index(self.name[0])]))]
        if sides[0] is sides[1] is sides[2]:
            return [Part(slice(None), _flat(sides[0]))]
        size = sides[0].shape[-1]
        return [Part(slice(i * size, (i + 1) * size), _flat(x)) for i, x in enumerate(sides)]


def weights_of(model: nn.Module) -> list[Weight]:
    """Every bound weight of a superposed model."""
    return [Weight(layer, name) for layer in layers(model) for name in layer.contexts]


def _flat(x: Tensor) -> Tensor:
    return x.reshape(1, -1, x.shape[-1])


def patches(layer: Any, x: Tensor, seed: int) -> Tensor:
    """What a convolution multiplies its kernel with: (groups, rows · places, channels · positions).

    Neighbouring places tell much the same, so of each dimension at most PLACES are drawn.

    >>> from superpose.nn import Conv1d
    >>> patches(Conv1d(1, 1, 2), torch.tensor([[[1.0, 2.0, 3.0]]]), seed=0)
    tensor([[[1., 2.],
             [2., 3.]]])
    """
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        padding = layer._reversed_padding_repeated_twice
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = F.pad(x, padding, mode=mode)
    else:
        x = F.pad(x, [size for size in reversed(layer.padding) for _ in range(2)])
    spatial = len(layer.kernel_size)
    generator = torch.Generator().manual_seed(seed)
    for dim in range(spatial):
        size, dilation = layer.kernel_size[dim], layer.dilation[dim]
        x = x.unfold(2 + dim, dilation * (size - 1) + 1, layer.stride[dim])[..., ::dilation]
        places = x.shape[2 + dim]
        if places > PLACES:
            drawn = torch.randperm(places, generator=generator)[:PLACES].sort().values
            x = x.index_select(2 + dim, drawn.to(x.device))
    # (B, C, places…, positions…) → (groups, B · places, C / groups · positions)
    x = x.flatten(2 + spatial).flatten(2, 1 + spatial).unflatten(1, (layer.groups, -1))
    return x.permute(1, 0, 3, 2, 4).flatten(1, 2).flatten(2)


def _attended(attention: Any, arguments: Any, named: dict[str, Any]) -> Tensor:
    """What the out-projection is given: the layer's output with the identity in its place."""
    own = {
        "out_proj.weight": torch.eye(attention.embed_dim).to(attention.out_proj.weight),
    }
    if attention.out_proj.bias is not None:
        own["out_proj.bias"] = torch.zeros_like(attention.out_proj.bias)
    with _hooks_off(attention):
        return torch.func.functional_call(attention, own, arguments, named)[0]


@contextmanager
def _hooks_off(module: nn.Module) -> Iterator[None]:
    own, module._forward_pre_hooks = module._forward_pre_hooks, type(module._forward_pre_hooks)()
    try:
        yield
    finally:
        module._forward_pre_hooks = own


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards each of its modules is in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def quiet_run() -> Iterator[None]:
    """No gradients, and none of PyTorch's fused attention, which does not call its layers."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def in_order(net: nn.Module, weights: Iterable[Weight], rows: Rows) -> list[tuple[Weight, int]]:
    """The weights in the order in which a run of the network meets them, and how often."""
    calls: dict[str, int] = {}
    names = {weight.module for weight in weights}

    def note(name: str) -> Callable[..., None]:
        return lambda *_: calls.update({name: calls.get(name, 0) + 1})

    handles = [net.get_submodule(n).register_forward_pre_hook(note(n)) for n in sorted(names)]
    try:
        rows.through(net)
    finally:
        for handle in handles:
            handle.remove()
    for weight in weights:
        if weight.module not in calls:
            raise SuperposeError(
                f"the calibration inputs never reach layer {weight.module!r}: name it in "
                "private_layers or in skip"
            )
    first = {name: place for place, name in enumerate(calls)}
    ordered = sorted(weights, key=lambda w: (first[w.module], w.inside_attention))
    return [(weight, calls[weight.module]) for weight in ordered]


def reaching(
    net: nn.Module, weight: Weight, calls: int, rows: Rows, weights: Mapping[str, Tensor], seed: int
) -> list[Part]:
    """What a weight is multiplied with when the rows run through the network."""
    found: list[list[Part]] = []

    def take(module: nn.Module, arguments: Any, named: dict[str, Any]) -> None:
        found.append(weight.inputs(module, arguments, named, seed))
        if len(found) == calls:
            raise _Enough

    handle = net.get_submodule(weight.module).register_forward_pre_hook(take, with_kwargs=True)
    try:
        rows.through(net, weights)
    except _Enough:
        pass
    finally:
        handle.remove()
    return [
        Part(parts[0].outputs, torch.cat([part.x for part in parts], 1))
        for parts in zip(*found, strict=True)
    ]
