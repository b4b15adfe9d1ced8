"""permutation: C(k) reorders the coordinates."""

from dataclasses import dataclass

import torch
from torch import Tensor

from superpose import functional, keys
from superpose.contexts.base import Context, Family, register_context
from superpose.keys import Key


@register_context
@dataclass(frozen=True, eq=False)
class Permuted(Context):
    """y[j] = x[index[j]]; `back` is the inverse order."""

    index: Tensor
    back: Tensor

    def bind(self, x: Tensor) -> Tensor:
        """X in the new order."""
        return functional.permute(x, self.index)

    def transpose(self) -> Context:
        """A permutation's transpose is its inverse."""
        return self.inverse()

    def inverse(self) -> Context:
        """The old order."""
        return Permuted(self.back, self.index)


@dataclass(frozen=True)
class Permutation(Family):
    """A uniform permutation: M whole numbers a task.

    It keeps the mean of w and x, so unlike the others its crosstalk is biased unless one of them is
    centred, which is why it stores fewer models.
    """

    def context(self, key: Key, dim: int) -> Context:
        """A new order of M coordinates."""
        index = torch.from_numpy(keys.permutation(key, dim))
        return Permuted(index, index.argsort())

    def moments(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(M w̄ x̄, ‖w − w̄‖²‖x − x̄‖²/(M − 1))."""
        dim = w.shape[-1]
        spread = [v.var(-1, correction=0) * dim for v in (w, x)]
        return dim * w.mean(-1) * x.mean(-1), spread[0] * spread[1] / max(dim - 1, 1)
