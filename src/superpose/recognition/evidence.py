"""Evidence: what speaks for each task, of each row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Superposed
from superpose.model.batch import Batch, declared
from superpose.model.structure import flatten


class Judged(NamedTuple):
    """What evidence says of rows and tasks, (B, K) each."""

    scores: Tensor  # the larger, the likelier
    surprise: Tensor | None = None  # deviations beyond what is usual for the task, if it can tell


class Evidence(ABC):
    """How likely rows are of which task; what it says of a row does not depend on the others."""

    @abstractmethod
    def judge(self, model: Superposed, batch: Batch, tasks: Tensor) -> Judged:
        """Of rows, each with the numbers of tasks that are possible for it, (B, K).

        The model is in evaluation mode, and there are no gradients.
        """


def as_batch(model: Superposed, inputs: tuple[object, ...], options: dict[str, object]) -> Batch:
    """The rows of what a network is given."""
    tensors, _, _ = flatten((inputs, options))
    where = declared(model, (inputs, options), len(tensors))
    sizes = [
        tensor.shape[min(dim, tensor.ndim - 1)]
        for tensor, dim in zip(tensors, where, strict=True)
        if dim is not None and tensor.ndim
    ]
    if not sizes or not max(sizes):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensor"
        raise SuperposeError(
            f"there are no rows in what was given ({shapes}): give a batch, its rows first"
        )
    return Batch.of(model, max(sizes), False, (inputs, options))
