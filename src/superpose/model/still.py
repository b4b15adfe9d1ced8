"""Passes that can be compared, and that leave nothing behind."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from superpose.nn.private import modules
from superpose.nn.quantised import full

DRAWS = {
    "aten::bernoulli": 1.0, "aten::bernoulli_": 1.0, "aten::uniform_": 0.5, "aten::normal_": 0.0,
    "aten::rand": 0.5, "aten::rand_like": 0.5, "aten::randn": 0.0, "aten::randn_like": 0.0,
}  # fmt: skip
"""What random numbers are replaced with, by function."""

INTERNAL = vars(nn.Module()).keys() - {"training"}


class Still(TorchDispatchMode):
    """Nothing is dropped, and what is drawn is the same for every row."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the function without its randomness."""
        kwargs = kwargs or {}
        name = function._schema.name
        if name == "aten::native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        place = _dropped(function)
        if place is not None and len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        elif place is not None:
            kwargs = {key: 0.0 if "dropout" in key else x for key, x in kwargs.items()}
        found = function(*args, **kwargs)
        if name == "aten::randperm":  # an order that the rows do not have by chance
            return found.copy_(torch.arange(len(found) - 1, -1, -1, device=found.device))
        return found.fill_(DRAWS[name]) if name in DRAWS else found


@functools.cache
def _dropped(function: Any) -> int | None:
    """Which argument of a fused function, such as attention, says how much is dropped."""
    names = [argument.name for argument in function._schema.arguments]
    return next((i for i, name in enumerate(names) if name in ("dropout", "dropout_p")), None)


class State:
    """What modules keep: attributes, what is in their lists and dictionaries, buffers, tensors.

    What tasks have for themselves is not among it: passes are given copies.
    """

    def __init__(self, model: nn.Module) -> None:
        network = modules(model)
        self.attributes = [(m, dict(vars(m)), dict(m._buffers)) for m in network]
        own = [x for _, attributes, _ in self.attributes for x in _containers(attributes)]
        self.containers = [(x, copy.copy(x)) for x in own]
        buffers = (t for module in network for t in module.buffers(recurse=False))
        tensors = {id(t): t for t in (*buffers, *kept_by(model))}
        self.tensors = [(t, t.clone()) for t in tensors.values()]

    def restore(self) -> None:
        """Make it what it was."""
        for module, own, kept in self.attributes:
            for name in vars(module).keys() - own.keys():
                del vars(module)[name]
            vars(module).update(own)
            module._buffers.clear()
            module._buffers.update(kept)
        for container, before in self.containers:
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(before)
        for tensor, value in self.tensors:
            plain = type(tensor) is Tensor and not tensor.is_meta
            if not plain or not torch.equal(tensor, value):
                tensor.copy_(value)  # it counts as a change, of which gradients are told


@contextmanager
def still(model: nn.Module) -> Iterator[tuple[np.random.Generator, Callable[[], None]]]:
    """No gradients and no random numbers, and the model is as before.

    It gives random numbers of its own, NumPy's, which are not stilled, and a function that makes
    the model what it was, between passes. Parameters that are all zero, which would hide what
    comes before them, are random for as long.
    """
    devices = {t.device for t in model.parameters() if t.device.type == "cuda"}
    with torch.no_grad():
        state, generator = State(model), np.random.default_rng(0)
        zeros = [
            (module._parameters, name, parameter)
            for module in modules(model)
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if parameter.numel() and not parameter.is_meta and not full(parameter).any()
        ]
        try:
            for own, name, parameter in zeros:
                inputs = parameter.numel() // len(parameter) if parameter.ndim > 1 else 1
                noise = torch.tensor(generator.standard_normal(parameter.shape)) / inputs**0.5
                noise = noise.to(parameter.device, parameter.dtype)
                own[name] = nn.Parameter(noise, requires_grad=False)
            with torch.random.fork_rng(devices), Still():  # type: ignore[no-untyped-call]
                yield generator, state.restore
        finally:
            for own, name, parameter in zeros:
                own[name] = parameter
            state.restore()


def _containers(own: dict[str, Any]) -> Iterator[Any]:
    """The lists, dictionaries and sets that a module keeps, where caches are; not PyTorch's own."""
    waiting = [value for name, value in own.items() if name not in INTERNAL]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (list, dict, set)):
            yield value
            waiting += value.values() if isinstance(value, dict) else value


def kept_by(model: nn.Module) -> Iterator[Tensor]:
    """The tensors that modules keep as attributes, or in lists and dictionaries."""
    for module in modules(model):
        inside = [x.values() if isinstance(x, dict) else x for x in _containers(vars(module))]
        values = chain(vars(module).values(), *inside)
        yield from (value for value in values if isinstance(value, Tensor))
