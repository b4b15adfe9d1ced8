"""Packing methods whose weights are a sum with one term for each model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.model import Name, layers
from superpose.nn.binding import grouped
from superpose.nn.layer import Layer
from superpose.nn.names import joined
from superpose.nn.quantised import full
from superpose.packing.low_rank import has_part, is_part, nearest_part, part_of, set_part
from superpose.packing.methods import PackingMethod, PackingOptions
from superpose.packing.packed import Packed, another_model, check_stored, set_private
from superpose.packing.sources import Sources


class Additive(PackingMethod):
    """W = Σₖ Wₖ C(k)⁻¹, the paper's equation 1, of the models or of their differences from a base.

    A term is added and subtracted by itself, so what is stored is what it would be if exactly these
    models had been packed from the start, with the same base. A low-rank part of a model is the
    nearest to its weight, or difference, and the rest is superposed.
    """

    takes = frozenset({"rank"})

    def fill(self, packed: Packed, sources: Sources, options: PackingOptions) -> None:
        """Add one term after the other."""
        _warn_of_inputs(packed, options)
        for name in options.track(list(sources.models), self.name):
            store(packed, name, sources.open(name))

    def add(self, packed: Packed, name: str, model: nn.Module, options: PackingOptions) -> None:
        """Add its term."""
        _warn_of_inputs(packed, options)
        packed.add_task(name)
        store(packed, name, model)

    def remove(self, packed: Packed, name: Name, model: nn.Module | None) -> None:
        """Subtract its term, if the model is given."""
        if model is not None:
            _check_stored(packed, name, model)
        if model is not None and len(packed.tasks) > 1:  # the only task is refused below, and stays
            add_term(packed, packed.superposition.number(name), model, -1)
        packed.remove_task(name)

    def replace(
        self,
        packed: Packed,
        name: Name,
        model: nn.Module,
        old: nn.Module | None,
        options: PackingOptions,
    ) -> None:
        """Subtract the old term and add the new one."""
        if old is None:
            raise SuperposeError(
                f"replacing {name!r} needs old=…, the model that is stored now: method "
                f"{self.name!r} subtracts its term"
            )
        _check_stored(packed, name, old)
        _warn_of_inputs(packed, options)
        add_term(packed, packed.superposition.number(name), old, -1)
        store(packed, name, model)


def _warn_of_inputs(packed: Packed, options: PackingOptions) -> None:
    """Inputs serve to recognise tasks, and nothing else here."""
    if options.calibration is not None and packed.superposition.conversion.recognise is None:
        warnings.warn(
            f"calibration has no effect with method {packed.method!r}: leave it out, or give "
            "recognise=True, which keeps statistics of it, or method='solve', which fits to it",
            stacklevel=4,
        )


def store(packed: Packed, name: Name, net: nn.Module) -> None:
    """Add the term of a model whose task is there already, and set its private tensors."""
    number = packed.superposition.number(name)
    for layer, tensor in _bound(packed):
        if has_part(layer, tensor):
            set_part(layer, tensor, number, *nearest_part(_change(layer, tensor, net), layer.rank))
    add_term(packed, number, net, +1)
    set_private(packed, name, net)


def add_term(packed: Packed, number: int, net: nn.Module, sign: int) -> None:
    """Add (or subtract) W C⁻¹ of one model for every layer, less its low-rank part."""
    for layer, tensor in _bound(packed):
        context = grouped(layer, tensor, layer.contexts[tensor].derive(number))
        own = context.unbind_weight(rest(layer, tensor, number, net))
        term = layer.from_matrix(tensor, own)
        target = getattr(layer.slot(number), tensor)
        with torch.no_grad():
            target.copy_(target.double() + sign * term)


def _check_stored(packed: Packed, name: Name, net: nn.Module) -> None:
    """Refuse a model whose private tensors, or low-rank parts, are not the task's."""
    check_stored(packed, name, net)
    number = packed.superposition.number(name)
    for layer, tensor in _bound(packed):
        if has_part(layer, tensor):
            down, up = nearest_part(_change(layer, tensor, net), layer.rank)
            if not is_part(layer, tensor, number, up @ down):
                raise another_model(name, joined(layer.path, tensor))


def rest(layer: Layer, tensor: str, number: int, net: nn.Module) -> Tensor:
    """What a model has in a weight beside the base and its low-rank part, as `to_matrix` does."""
    return _change(layer, tensor, net) - part_of(layer, tensor, number)


def _bound(packed: Packed) -> Iterator[tuple[Layer, str]]:
    return ((layer, tensor) for layer in layers(packed) for tensor in layer.contexts)


def _change(layer: Layer, tensor: str, net: nn.Module) -> Tensor:
    """A model's weight, less that of the base if there is one, as `to_matrix` gives it."""
    own = net.get_parameter(joined(layer.path, tensor)).detach().double()
    if tensor in layer.bases:
        own = own - full(layer.bases[tensor]).detach().double()
    return layer.to_matrix(tensor, own)
