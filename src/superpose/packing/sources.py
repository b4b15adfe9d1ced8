"""The models to pack: opened one at a time, and compared before anything is computed."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError, kind_of
from superpose.model import Name, Superposed

Source = nn.Module | Callable[[], nn.Module]


def opened(name: Name, source: Any) -> nn.Module:
    """The model of a source, in evaluation mode: other modules, which share the user's tensors."""
    if isinstance(source, type):
        raise SuperposeError(
            f"model {name!r} is {kind_of(source)}, whose modules have weights that nothing has "
            "learned yet: give a module, with its weights loaded, or a function that returns one"
        )
    model = source() if callable(source) and not isinstance(source, nn.Module) else source
    if isinstance(model, Superposed) or not isinstance(model, nn.Module):
        raise SuperposeError(
            f"model {name!r} is a {type(model).__name__}: give a plain module, or a function that "
            "returns one"
        )
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, tensors).eval()


@dataclass
class Sources:
    """Models by name; each was opened once, to see that all fit together and what differs."""

    models: Mapping[Any, Source]
    shapes: dict[str, str] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)  # tensors that are not equal in all models

    def __post_init__(self) -> None:
        if not isinstance(self.models, Mapping):
            raise SuperposeError(
                f"the models to pack are {kind_of(self.models)}: give a mapping from names to "
                "models, as in {'cats': net}"
            )
        if not self.models:
            raise SuperposeError("there is no model to pack: give a mapping from names to models")
        digests: dict[str, bytes] = {}
        for name in self.models:
            self._compare(name, digests)

    def _compare(self, name: Name, digests: dict[str, bytes]) -> None:
        state = checked(name, self.open(name), self.shapes)
        self.shapes = self.shapes or {key: shape_of(tensor) for key, tensor in state.items()}
        for key, tensor in state.items():
            if digests.setdefault(key, digest := _digest(tensor)) != digest:
                self.differing.add(key)

    def open(self, name: Name) -> nn.Module:
        """One model."""
        return opened(name, self.models[name])

    def first(self) -> nn.Module:
        """The first model."""
        return self.open(next(iter(self.models)))


def shape_of(tensor: Tensor) -> str:
    """Shape and type of number, to compare and to show."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def checked(name: Name, model: nn.Module, shapes: Mapping[str, str]) -> dict[str, Tensor]:
    """The model's state, if all of it is finite and of these shapes (if any are given)."""
    state = model.state_dict()
    for key, tensor in state.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise SuperposeError(f"model {name!r}: {key} holds numbers that are not finite")
    for key in [*shapes, *state] if shapes else ():
        problem = None
        if key not in state or key not in shapes:
            problem = f" {'has no' if key not in state else 'has another tensor,'} {key}"
        elif shape_of(state[key]) != shapes[key]:
            problem = f": {key} is {shape_of(state[key])}, and {shapes[key]} in the others"
        if problem:
            raise SuperposeError(
                f"model {name!r}{problem}: models that are packed together have one architecture"
            )
    return state


def _digest(tensor: Tensor) -> bytes:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return hashlib.blake2b(data).digest()
