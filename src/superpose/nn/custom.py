"""Layers whose class has a forward pass of its own: it runs on the tensors of the task."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from superpose.errors import SuperposeError
from superpose.nn.layer import Layer
from superpose.nn.norm import TrackedNorm


class CustomLayer(Layer):
    """f(x; W C(k), b(k)), whatever f a subclass of one of PyTorch's layers computes.

    With rows of many tasks, f is mapped over the rows and their tensors.
    """

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The plain layer's forward pass."""
        selected, rows = self.selected()
        if rows is None:
            return self.of_one_task(self.plain_tensors(selected), *inputs, **options)
        if isinstance(self, TrackedNorm):
            self.check_mixed(self.running_mean is not None)
        if self.training and any(name in selected.private for name in self._buffers):
            raise SuperposeError(
                f"layer {self.layer!r} keeps statistics of the rows that it sees, which rows of "
                "different tasks would change for each other: call model.eval(), or run each task "
                "by itself"
            )
        given: dict[Any, Any] = {**dict(enumerate(inputs)), **options}  # by place or name
        mapped = {name: x for name, x in given.items() if isinstance(x, Tensor)}
        dims = {name: self.rows_at(x, rows) for name, x in mapped.items()}

        def of_row(tensors: dict[str, Tensor], row: dict[Any, Tensor]) -> Any:
            alone = given | {name: x.unsqueeze(dims[name]) for name, x in row.items()}
            positional = [alone[place] for place in range(len(inputs))]
            named = {name: alone[name] for name in options}
            y = self.plain_class.forward(self.plain_with(tensors), *positional, **named)
            return tree_map(lambda each: each.squeeze(dim), y)

        dim = next(iter(dims.values()))
        over_rows = torch.vmap(of_row, in_dims=(0, dims), out_dims=dim, randomness="different")
        return over_rows(self.plain_tensors(selected, rows), mapped)

    def of_one_task(self, tensors: dict[str, Tensor], *inputs: Any, **options: Any) -> Any:
        """The same for one task; statistics that it sets anew, not in place, are kept too."""
        plain = self.plain_with(tensors)
        statistics = [name for name in self._buffers if name in tensors]
        plain._buffers = {n: own for n, own in self._buffers.items() if n not in statistics}
        y = self.plain_class.forward(plain, *inputs, **options)
        for name in statistics:
            new = getattr(plain, name)
            if new is not tensors[name]:
                tensors[name].copy_(new.detach())
        return y


class PrivateLayer(CustomLayer):
    """A module that is none of PyTorch's layers, all of which each task has for itself."""

    def bound(self) -> dict[str, tuple[int, int]]:
        """No weight."""
        return {}
