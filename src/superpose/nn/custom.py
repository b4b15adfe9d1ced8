"""Layers whose class has a forward pass of its own: it runs on the tensors of the task."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from superpose.nn.layer import Layer
from superpose.nn.selection import NotDirect


class CustomLayer(Layer):
    """f(x; W C(k), b(k)), whatever f a subclass of one of PyTorch's layers computes.

    In a mixed batch private vectors of one input are spread over the dimensions before the last, as
    norms and scales use them; other layers leave the rows to the model, which maps or groups them.
    """

    is_linear_map = False
    has_input_mean = False  # its class may do anything with its inputs

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The plain layer's forward pass."""
        selected, rows = self.selected()
        if rows is None:
            return self.of_one_task(self.plain_tensors(selected), *inputs, **options)
        if self.contexts or options or len(inputs) != 1 or not isinstance(inputs[0], Tensor):
            raise NotDirect(self.path, "has a forward pass of its own")
        x, own = inputs[0], selected.private
        if any(vector.ndim != 2 or vector.shape[-1] != x.shape[-1] for vector in own.values()):
            raise NotDirect(
                self.path, "has private tensors that are not vectors as long as its inputs"
            )
        spread = {name: self.spread(vector, x, rows) for name, vector in own.items()}
        return self.of_one_task(spread, x)

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


class DeclaredLayer(CustomLayer):
    """A module of which `register` told which tensors are bound, whatever it does with them.

    `input_dims` is the dimension of each along which its inputs lie.
    """

    conversion_settings = ("input_dims",)
    input_dims: dict[str, int]

    def bound(self) -> dict[str, tuple[int, int]]:
        """What was declared; dimensions before inputs and outputs belong to the outputs."""
        return {name: (self.stored(name).shape[dim], 1) for name, dim in self.input_dims.items()}

    def to_matrix(self, name: str, weight: Tensor) -> Tensor:
        """The inputs last."""
        return weight.movedim(self.input_dims[name], -1)

    def from_matrix(self, name: str, matrix: Tensor) -> Tensor:
        """The inputs back in their place."""
        return matrix.movedim(-1, self.input_dims[name])

    def dims_of_inputs(self, name: str) -> tuple[int, ...]:
        """The one that was declared."""
        return (self.input_dims[name] % self.stored(name).ndim,)


class OwnLayer(CustomLayer):
    """A module that is none of PyTorch's layers: norms written by hand, or private as a whole."""

    binds_weights = False

    def bound(self) -> dict[str, tuple[int, int]]:
        """No weight."""
        return {}

    def running_statistics(self) -> list[str]:
        """Its buffers, if it is like a norm: all that it learns is vectors."""
        if not all(map(is_vector, self.parameters(recurse=False))):
            return []
        return list(dict(self.named_buffers(recurse=False)))


class Keeper(Layer):
    """A module with layers in it: what it keeps beside them is the task's, wherever it is read."""

    binds_weights = False

    def bound(self) -> dict[str, tuple[int, int]]:
        """No weight: it is not known how they are used."""
        return {}


def is_vector(tensor: Tensor) -> bool:
    """Whether at most one dimension has more than one entry."""
    return tensor.numel() == max(tensor.shape, default=1)
