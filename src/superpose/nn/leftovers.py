"""What was not superposed: an error if nothing was, a warning of what stays shared."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.nn.layer import Layer
from superpose.nn.names import inside, joined, listed
from superpose.nn.registry import declaration, told

if TYPE_CHECKING:
    from superpose.nn.options import Options


def check_converted(
    kind: type, modules: dict[str, nn.Module], skip: Iterable[str], options: Options
) -> None:
    """Check that something was superposed, and warn of weights that stay shared."""
    layers = [module for module in modules.values() if isinstance(module, Layer)]
    private = {joined(layer.path, name) for layer in layers for name in layer.private}
    frozen = set(options.frozen)
    shared = {n: m for n, m in modules.items() if not inside(n, (*skip, *options.private_layers))}
    custom = [n for n, m in shared.items() if _binds(m) and not isinstance(m, Layer)]
    left = [n for n in custom if _matrices(n, shared[n], recurse=True) - frozen]
    unknown = {
        n: m
        for n, m in shared.items()
        if _undeclared(m) and not inside(n, left) and _matrices(n, m) - private - frozen
    }
    if not any(layer.bound for layer in layers):
        _refuse(kind, modules, private, options, unknown)
    if left:
        warnings.warn(
            f"{listed(left)} stay shared by all tasks, because they were customised beyond their "
            "class (a forward was set on them, or their weight is quantised or made from other "
            "tensors): name them in skip if that is meant, or in private_layers",
            stacklevel=5,
        )
    if unknown:
        names = sorted(
            set().union(*(_matrices(n, m) for n, m in unknown.items())) - private - frozen
        )
        warnings.warn(
            f"{listed(names)} {'stays' if len(names) == 1 else 'stay'} shared by all tasks: "
            f"{_how_to_declare(unknown)}; or name {'it' if len(names) == 1 else 'them'} in skip or "
            "private_layers",
            stacklevel=5,
        )


def _refuse(
    kind: type,
    modules: dict[str, nn.Module],
    private: set[str],
    options: Options,
    unknown: dict[str, nn.Module],
) -> None:
    frozen = set(options.frozen)
    learns = {n for path, m in modules.items() for n in _matrices(path, m)} - frozen
    if frozen and learns and learns <= private:
        raise SuperposeError(
            f"{kind.__name__} has nothing to superpose: all that learns in it, "
            f"{listed(sorted(learns))}, is each task's own already, and the rest is frozen "
            "(requires_grad=False); let layers that tasks should share learn, "
            "requires_grad_(True), or bind frozen weights with bind_frozen=True"
        )
    why = ""
    if frozen:
        why += "; weights that are frozen (requires_grad=False) are bound with bind_frozen=True"
    if options.min_inputs:
        why += f"; min_inputs={options.min_inputs} makes layers with fewer inputs private"
    if unknown:
        why += f"; {_how_to_declare(unknown)}"
    raise SuperposeError(
        f"{kind.__name__} has no layer to superpose: it needs at least one linear, convolution, "
        "attention or recurrent layer, or a module that was declared, that is not in skip or "
        f"private_layers, and that was not customised beyond its class{why}"
    )


def is_vector(tensor: Tensor) -> bool:
    """Whether at most one dimension has more than one entry."""
    return tensor.numel() == max(tensor.shape, default=1)


def _matrices(layer: str, module: nn.Module, recurse: bool = False) -> set[str]:
    own = module.named_parameters(recurse=recurse)
    return {joined(layer, name) for name, tensor in own if not is_vector(tensor)}


def _undeclared(module: nn.Module) -> bool:
    """Whether it is not known what a module does with tensors that it keeps."""
    return not isinstance(module, Layer) and declaration(module) is None


def _binds(module: nn.Module) -> bool:
    """Whether modules of its class have weights that are bound."""
    found = declaration(module)
    if found is None:
        return False
    return found.form.binds if isinstance(found.form, type) else bool(found.form)


def _how_to_declare(unknown: dict[str, nn.Module]) -> str:
    kinds: dict[str, dict[str, int]] = {}
    for module in unknown.values():
        if not any(True for _ in module.children()):  # beside layers there are mostly tables
            kinds[type(module).__name__] = dict.fromkeys(sorted(_matrices("", module)), -1)
    if not kinds:
        return "it is not known what they are"
    calls = " and ".join(f"sp.nn.register({kind}, {told(dims)})" for kind, dims in kinds.items())
    return (
        f"it is not known along which dimension their inputs lie; declare it, as in {calls}, where "
        "-1 is for x @ W.T, -2 for x @ W, and {} for a table, of which nothing is bound"
    )
