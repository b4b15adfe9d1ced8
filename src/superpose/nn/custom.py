"""Layers whose class has a forward pass of its own: it runs on the tensors of the task."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from superpose.errors import SuperposeError
from superpose.nn.layer import Layer, MatrixLayout
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
                f"layer {self.path!r} keeps statistics of the rows that it sees, which rows of "
                "different tasks would change for each other: call model.eval(), or run each task "
                "by itself"
            )
        given, structure = tree_flatten((inputs, options))
        tensors = {i: x for i, x in enumerate(given) if isinstance(x, Tensor)}
        dims = {
            i: self.rows_at(x, rows, features=int(x.is_floating_point()))  # ids have none
            for i, x in tensors.items()
            if not self.common(x, rows)
        }
        if not dims:
            raise SuperposeError(
                f"layer {self.path!r} is given no rows of the batch, so it cannot have a result "
                "for each of their tasks: run it once per task instead"
            )
        dim = next(iter(dims.values()))

        def of_row(tensors: dict[str, Tensor], row: dict[int, Tensor]) -> Any:
            alone = [row[i].unsqueeze(dims[i]) if i in dims else x for i, x in enumerate(given)]
            positional, named = tree_unflatten(alone, structure)
            y = self.plain_class.forward(self.plain_with(tensors), *positional, **named)
            return tree_map(lambda one: one.squeeze(dim) if isinstance(one, Tensor) else one, y)

        over_rows = torch.vmap(of_row, in_dims=(0, dims), out_dims=dim, randomness="different")
        try:
            return over_rows(self.plain_tensors(selected, rows), {i: given[i] for i in dims})
        except (RuntimeError, ValueError) as error:
            raise SuperposeError(
                f"layer {self.path!r} cannot be mapped over rows of different tasks: run it once "
                f"per task instead ({error})"
            ) from error

    def of_one_task(self, tensors: dict[str, Tensor], *inputs: Any, **options: Any) -> Any:
        """The same for one task; what it sets anew, not in place, is kept too."""
        plain = self.plain_with(tensors)
        statistics = [name for name in self._buffers if name in tensors]
        plain._buffers = {n: own for n, own in self._buffers.items() if n not in statistics}
        before = dict(vars(plain))
        y = self.plain_class.forward(plain, *inputs, **options)
        for name in statistics:
            new = getattr(plain, name)
            if new is not tensors[name]:
                tensors[name].copy_(new.detach())
        self._buffers.update(plain._buffers)
        for name, value in vars(plain).items():
            if name not in tensors and (name not in before or value is not before[name]):
                vars(self)[name] = value
        return y


class OwnLayer(MatrixLayout, CustomLayer):
    """A module that is none of PyTorch's layers: its matrices are bound, whatever it does to them.

    Their last dimension is taken for that of the inputs.
    """

    def bound(self) -> dict[str, tuple[int, int]]:
        """All of its parameters that are not vectors."""
        own = self.named_parameters(recurse=False)
        return {name: (matrix.shape[-1], 1) for name, matrix in own if not is_vector(matrix)}


class Keeper(Layer):
    """A module with layers in it: what it keeps beside them is the task's, wherever it is read."""

    def bound(self) -> dict[str, tuple[int, int]]:
        """No weight: it is not known how they are used."""
        return {}


def is_vector(tensor: Tensor) -> bool:
    """Whether at most one dimension has more than one entry."""
    return tensor.numel() == max(tensor.shape, default=1)
