"""Layers that were not superposed: an error if there is no other, a warning if they stay shared."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn

from superpose.errors import SuperposeError
from superpose.nn.centring import TASK
from superpose.nn.custom import Keeper, is_vector
from superpose.nn.forms import binds_weights, undeclared
from superpose.nn.layer import Layer
from superpose.nn.names import inside, joined, listed
from superpose.nn.registry import told

if TYPE_CHECKING:
    from superpose.nn.convert import Conversion


def check_converted(
    kind: type, modules: dict[str, nn.Module], skip: Iterable[str], conversion: Conversion
) -> None:
    """That something was superposed, that what is named is private, and a warning of the rest."""
    layers = [module for module in modules.values() if isinstance(module, Layer)]
    private = {joined(layer.path, name) for layer in layers for name in layer.private}
    shared = {
        n: m for n, m in modules.items() if not inside(n, (*skip, *conversion.private_layers))
    }
    known = private | set(conversion.frozen)
    unknown = {n: m for n, m in shared.items() if undeclared(n, m) and _matrices(n, m) - known}
    if not any(layer.contexts for layer in layers):
        learns = {n for path, m in modules.items() for n in _matrices(path, m)} - {
            *conversion.frozen
        }
        if conversion.frozen and learns and learns <= private:
            raise SuperposeError(
                f"{kind.__name__} has nothing to superpose: all that learns in it, "
                f"{listed(sorted(learns))}, is each task's own already, and the rest is frozen "
                "(requires_grad=False); let layers that tasks should share learn, "
                "requires_grad_(True), or bind frozen weights with bind_frozen=True"
            )
        raise SuperposeError(
            f"{kind.__name__} has no layer to superpose: it needs at least one linear, "
            "convolution, attention or recurrent layer, or a module that was declared, that is not "
            "in skip or private_layers, and that was not customised beyond its class"
            + _why_not_bound(conversion)
            + (f"; {_how_to_declare(unknown)}" if unknown else "")
        )
    if conversion.centre == TASK and not any(layer.centre == TASK for layer in layers):
        raise SuperposeError(
            f"centre='task': {kind.__name__} has no linear or convolution layer that is superposed "
            "and called: leave centre out"
        )
    for name in conversion.private_layers:
        if name not in modules and name not in private:
            owner, _, _ = name.rpartition(".")
            raise SuperposeError(
                f"private_layers: {name!r} is one tensor of a layer that can only be private as a "
                f"whole: name the layer, {owner!r}"
            )
    left = [n for n, m in shared.items() if binds_weights(n, m) and not _converted(m)]
    left = [name for name in left if not _is_frozen(name, modules[name], conversion)]
    if left:
        warnings.warn(
            f"{', '.join(left)} stay shared by all tasks, because they were customised beyond "
            "their class (a forward was set on them, or their weight is quantised or made from "
            "other tensors): name them in skip if that is meant, or in private_layers",
            stacklevel=5,
        )
    if unknown:
        warnings.warn(
            f"the matrices of {', '.join(unknown)} stay shared by all tasks: "
            f"{_how_to_declare(unknown)}; or name them in skip or private_layers",
            stacklevel=5,
        )


def _why_not_bound(conversion: Conversion) -> str:
    """Options that may have left no layer to superpose."""
    why = ""
    if conversion.frozen:
        why += "; weights that are frozen (requires_grad=False) are bound with bind_frozen=True"
    if conversion.min_inputs:
        why += f"; min_inputs={conversion.min_inputs} makes layers with fewer inputs private"
    return why


def _matrices(layer: str, module: nn.Module) -> set[str]:
    own = module.named_parameters(recurse=False)
    return {joined(layer, name) for name, tensor in own if not is_vector(tensor)}


def _is_frozen(layer: str, module: nn.Module, conversion: Conversion) -> bool:
    """Whether it has matrices, and none of them learns."""
    own = _matrices(layer, module)
    return bool(own) and own <= set(conversion.frozen)


def _converted(module: nn.Module) -> bool:
    """Whether it, or what it is made of, is superposed or private."""
    inner = (m for m in module.modules() if isinstance(m, Layer))
    return any(m is not module or not isinstance(m, Keeper) for m in inner)


def _how_to_declare(unknown: dict[str, nn.Module]) -> str:
    kinds: dict[str, dict[str, int]] = {}
    for module in unknown.values():
        plain = module.plain_class if isinstance(module, Layer) else type(module)
        kinds[plain.__name__] = {
            name.rpartition(".")[2]: -1 for name in sorted(_matrices("", module))
        }
    calls = " and ".join(f"sp.nn.register({kind}, {told(dims)})" for kind, dims in kinds.items())
    return (
        f"it is not known along which dimension their inputs lie; declare it, as in {calls}, where "
        "-1 is for x @ W.T, -2 for x @ W, and {} for a table, of which nothing is bound"
    )
