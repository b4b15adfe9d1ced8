"""Containers that run, or count, all that is put into them: not the private tensors of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import nn

from superpose.errors import SuperposeError
from superpose.nn.private import STATE


class Container:
    """`nn.Sequential` and `nn.ModuleList`, superposed."""

    _modules: dict[str, nn.Module]

    def __iter__(self) -> Iterator[nn.Module]:
        count = len(self._modules) - (STATE in self._modules)
        return islice(self._modules.values(), count)  # private tensors come last

    def __len__(self) -> int:
        return len(self._modules) - (STATE in self._modules)

    def __getitem__(self, index: Any) -> nn.Module:
        if isinstance(index, slice):
            raise SuperposeError(
                "a part of a superposed model has no tasks of its own: slice "
                "sp.unsuperpose(model, task), or call the layers inside `with model.task(…):`"
            )
        own = list(self)
        if not -len(own) <= index < len(own):
            raise IndexError(f"index {index} is out of range of {len(own)} modules")
        return own[index]
