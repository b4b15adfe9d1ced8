"""Tensors that every task has for itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.nn.selection import Tasks


class Private(nn.Module):
    """What every task has for itself of one layer, by the name that it has there.

    Unlike `nn.ModuleDict` it has no methods that a tensor could not be named after, such as `keys`.
    """

    def __getitem__(self, name: str) -> PerTask:
        return cast(PerTask, self._modules[name])

    def __setitem__(self, name: str, tensors: PerTask) -> None:
        self.register_module(name, tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __len__(self) -> int:
        return len(self._modules)


class PerTask(nn.Module):
    """One tensor for each task: parameters if the template is one, buffers (statistics) if not.

    Each is a tensor of its own, so an optimiser leaves those of the other tasks alone: momentum and
    weight decay do not reach a tensor that has no gradient.
    """

    def __init__(self, template: Tensor) -> None:
        super().__init__()
        self.is_parameter = isinstance(template, nn.Parameter)
        self.trained = template.requires_grad

    def add(self, task: int, value: Tensor) -> None:
        """Give the task its own copy of `value`."""
        own = value.detach().clone()
        if self.is_parameter:
            self.register_parameter(str(task), nn.Parameter(own, self.trained))
        else:
            self.register_buffer(str(task), own)

    def remove(self, task: int) -> None:
        """Forget the task's tensor."""
        delattr(self, str(task))

    def of(self, task: int) -> Tensor:
        """The task's tensor."""
        return self._tensors()[str(task)]

    def select(self, tasks: Tasks) -> Tensor:
        """The task's tensor itself, or a new one with a row for each row of the batch."""
        own = self._tensors()
        chosen = [own[str(task)] for task in tasks.unique]
        if is_sharded(chosen[0]):
            raise SuperposeError(
                "private tensors are chosen before a layer runs, when its parameters are sharded: "
                "shard the model as a whole, not its layers too, or say private='shared'"
            )
        return by_row(chosen, tasks.row)

    def _tensors(self) -> dict[str, Tensor]:
        """By task; `getattr` would take ten times as long. A replica has them as attributes."""
        return cast(dict[str, Tensor], self._parameters or self._buffers or vars(self))


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a `DTensor`, of which each process has a part."""
    return hasattr(tensor, "placements")


def by_row(tensors: list[Tensor], row: Tensor | None) -> Tensor:
    """The one tensor itself, or a new one that has `tensors[row[i]]` in row i."""
    return tensors[0] if row is None else torch.stack(tensors).index_select(0, row)
