"""Bound weights of a packed model, and the inputs that they meet in the plain networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from superpose.contexts import Context
from superpose.errors import SuperposeError
from superpose.model import Superposed
from superpose.nn import Bound, Layer, Met, full, joined
from superpose.packing.calibration import Rows

BIASES = {"weight": "bias", "in_proj_weight": "in_proj_bias"}  # added to the product of a weight


@dataclass(frozen=True)
class Weight:
    """A bound weight of a layer; `full_name` is its name in the plain network."""

    layer: Layer
    name: str

    @property
    def full_name(self) -> str:
        return joined(self.layer.path, self.name)

    @property
    def bound(self) -> Bound:
        return self.layer.bound[self.name]

    @property
    def stored(self) -> nn.Parameter:
        """W, which all tasks share."""
        stored: nn.Parameter = self.layer.stored(self.name)
        return stored

    @property
    def base(self) -> Tensor | None:
        """W₀ in full precision, if tasks have a base."""
        base = self.layer.base(self.name)
        return None if base is None else full(base).detach()

    @property
    def bias(self) -> str | None:
        """The full name of the private tensor that is added to the product, if there is one."""
        name = BIASES.get(self.name, "")
        return joined(self.layer.path, name) if name in self.layer.private else None

    def blocks(self, weight: Tensor) -> Tensor:
        """The weight as (groups, outputs, features), in float64."""
        return self.bound.layout.to_blocks(weight.detach().double())

    def context(self, task: int, like: Tensor) -> Context:
        """C(task), which has a leading dimension of groups if the weight has several."""
        context = self.bound.context.fixed(task, like.device, like.dtype)
        return context.by_row() if self.bound.grouped else context

    def bind(self, x: Tensor, task: int) -> Tensor:
        """C(task)·x for inputs (groups, rows, features)."""
        layout = self.bound.layout
        matrix = layout.to_matrix(layout.from_blocks(x))  # the rows in the place of outputs
        return layout.to_blocks(layout.from_matrix(self.context(task, x).bind(matrix)))


def bound_weights(model: Superposed) -> list[Weight]:
    """All bound weights of a superposed model."""
    return [Weight(layer, name) for layer in model.superposed_layers for name in layer.bound]


def linear_maps(model: Superposed) -> list[Weight]:
    """All bound weights, if each is a linear map of inputs that can be observed."""
    weights = bound_weights(model)
    for weight in weights:
        if not weight.layer.is_linear_map(weight.name):
            raise SuperposeError(
                f"{weight.layer.plain_class.__name__} {weight.layer.path!r} is not one linear map, "
                "so it can be neither solved for nor predicted: name it in private_layers or in "
                "skip, or pack by 'sum'"
            )
    return weights


def product(met: Met, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """W·x + b of some outputs, for W (groups, outputs, features) and b (all outputs)."""
    y = met.x.double() @ matrix[:, met.outputs].mT
    return y if bias is None else y + bias.view(len(matrix), 1, -1)[..., met.outputs]


def in_order(net: nn.Module, weights: Iterable[Weight], rows: Rows) -> list[tuple[Weight, int]]:
    """The weights in the order in which a run of the network meets them, and how often."""
    calls: dict[str, int] = {}
    names = {weight.layer.called for weight in weights}

    def count(name: str) -> Callable[..., None]:
        return lambda *_: calls.update({name: calls.get(name, 0) + 1})

    handles = [net.get_submodule(n).register_forward_pre_hook(count(n)) for n in sorted(names)]
    try:
        rows.through(net)
    finally:
        for handle in handles:
            handle.remove()
    missing = next((name for name in sorted(names) if name not in calls), None)
    if missing is not None:
        raise SuperposeError(
            f"the calibration inputs never reach layer {missing!r}: name it in private_layers or "
            "in skip"
        )
    first = {name: place for place, name in enumerate(calls)}
    # a layer that its parent reads and never calls, such as an out-projection, comes last in it
    ordered = sorted(weights, key=lambda w: (first[w.layer.called], w.layer.called != w.layer.path))
    return [(weight, calls[weight.layer.called]) for weight in ordered]


class _Enough(Exception):  # noqa: N818 (nothing went wrong)
    """All calls of the layer were seen: the rest of the network need not run."""


def reaching(
    net: nn.Module, weight: Weight, calls: int, rows: Rows, weights: Mapping[str, Tensor], seed: int
) -> list[Met]:
    """The inputs of a weight when rows run through the network, `weights` in place of its own."""
    seen: list[list[Met]] = []

    def take(module: nn.Module, inputs: Any, options: dict[str, Any]) -> None:
        seen.append(weight.layer.inputs_of(weight.name, module, inputs, options, seed))
        if len(seen) == calls:
            raise _Enough

    module = net.get_submodule(weight.layer.called)
    handle = module.register_forward_pre_hook(take, with_kwargs=True)
    try:
        rows.through(net, weights)
    except _Enough:
        pass
    finally:
        handle.remove()
    return [
        Met(parts[0].outputs, torch.cat([part.x for part in parts], 1))
        for parts in zip(*seen, strict=True)
    ]
