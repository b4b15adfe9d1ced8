"""Packing methods whose weights are a sum with one term for each model."""

from __future__ import annotations

import torch
from torch import nn

from superpose.errors import SuperposeError
from superpose.model import Name, layers
from superpose.nn.binding import grouped
from superpose.nn.names import joined
from superpose.packing.methods import PackingMethod, PackingOptions
from superpose.packing.packed import Packed, set_private
from superpose.packing.sources import Sources


class Additive(PackingMethod):
    """W = Σₖ Wₖ C(k)⁻¹, the paper's equation 1, of the models or of their differences from a base.

    A term is added and subtracted by itself, so what is stored is what it would be if exactly these
    models had been packed from the start.
    """

    def fill(self, packed: Packed, sources: Sources, options: PackingOptions) -> None:
        """Add one term after the other."""
        for name in options.track(list(sources.models), self.name):
            store(packed, name, sources.open(name))

    def add(self, packed: Packed, name: str, model: nn.Module, options: PackingOptions) -> None:
        """Add its term."""
        packed.add_task(name)
        store(packed, name, model)

    def remove(self, packed: Packed, name: Name, model: nn.Module | None) -> None:
        """Subtract its term, if the model is given."""
        number = packed.superposition.number(name)
        packed.remove_task(name)
        if model is not None:
            add_term(packed, number, model, -1)

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
        add_term(packed, packed.superposition.number(name), old, -1)
        store(packed, name, model)


def store(packed: Packed, name: Name, net: nn.Module) -> None:
    """Add the term of a model whose task is there already, and set its private tensors."""
    add_term(packed, packed.superposition.number(name), net, +1)
    set_private(packed, name, net)


def add_term(packed: Packed, number: int, net: nn.Module, sign: int) -> None:
    """Add (or subtract) W C⁻¹ of one model for every layer."""
    for layer in layers(packed):
        for tensor in layer.contexts:
            own = net.get_parameter(joined(layer.path, tensor)).detach().double()
            if tensor in layer.bases:
                own = own - layer.bases[tensor].detach().double()
            context = grouped(layer, tensor, layer.contexts[tensor].derive(number))
            term = layer.from_matrix(tensor, context.unbind_weight(layer.to_matrix(tensor, own)))
            target = getattr(layer.slot(number), tensor)
            with torch.no_grad():
                target.copy_(target.double() + sign * term)
