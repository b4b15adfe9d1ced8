"""Passes that can be compared, and that leave nothing behind."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
DRAWS = {
    aten.bernoulli: 1.0, aten.bernoulli_: 1.0, aten.uniform_: 0.5, aten.normal_: 0.0,
    aten.rand: 0.5, aten.rand_like: 0.5, aten.randn: 0.0, aten.randn_like: 0.0,
}  # fmt: skip
"""What random numbers are replaced with."""


class Still(TorchDispatchMode):
    """Nothing is dropped, and what is drawn is the same for every row."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the function without its randomness."""
        kwargs = kwargs or {}
        packet = function.overloadpacket
        if packet is aten.native_dropout:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        place = _dropped(function)
        if place is not None and len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        elif place is not None:
            kwargs = {name: 0.0 if "dropout" in name else x for name, x in kwargs.items()}
        found = function(*args, **kwargs)
        return found.fill_(DRAWS[packet]) if packet in DRAWS else found


@functools.cache
def _dropped(function: Any) -> int | None:
    """Which argument of a fused function, such as attention, says how much is dropped."""
    names = [argument.name for argument in function._schema.arguments]
    return next((i for i, name in enumerate(names) if name in ("dropout", "dropout_p")), None)


@contextmanager
def still(model: nn.Module) -> Iterator[torch.Generator]:
    """No gradients and no random numbers, and the model is as before; gives numbers of its own."""
    attributes = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    buffers = [(t, t.clone()) for t in model.buffers()] if model.training else []
    devices = {t.device for t in model.parameters() if t.device.type == "cuda"}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices), Still():  # type: ignore[no-untyped-call]
            yield torch.Generator().manual_seed(0)
    finally:
        for module, own, kept in attributes:
            for name in vars(module).keys() - own.keys():
                del vars(module)[name]
            vars(module).update(own)
            module._buffers.clear()
            module._buffers.update(kept)
        with torch.no_grad():
            for tensor, value in buffers:
                tensor.copy_(value)


def kept_by(model: nn.Module) -> Iterator[Tensor]:
    """The tensors that modules keep as attributes."""
    values = (value for module in model.modules() for value in vars(module).values())
    return (value for value in values if isinstance(value, Tensor))
