"""Labelled rows, and whose they are: what a step learns from, and what a test asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.model import Superposed

Select = Literal["task", "context", "none", "found", "together"]
"""Which number of its rows a network is told; or it finds it, of each row, or of all together."""


@dataclass(frozen=True)
class Labelled:
    """Inputs x (B, …) and labels y (B,), with the task and the context of all rows or of each (B,).

    >>> one = Labelled(torch.zeros(2, 3), torch.tensor([0, 1]), task=0, context=0)
    >>> two = Labelled(torch.ones(1, 3), torch.tensor([1]), task=4, context=4)
    >>> one.beside(two).task
    tensor([0, 0, 4])
    """

    x: Tensor
    y: Tensor
    task: int | Tensor
    context: int | Tensor
    select: Select = "none"
    rows: slice = field(default_factory=lambda: slice(None))
    """Where several processes share a batch: which rows of the whole these are."""

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: slice | Tensor) -> Labelled:
        """Some of the rows."""
        task = self.task[rows] if isinstance(self.task, Tensor) else self.task
        context = self.context[rows] if isinstance(self.context, Tensor) else self.context
        return replace(self, x=self.x[rows], y=self.y[rows], task=task, context=context)

    def split(self, size: int) -> Iterator[Labelled]:
        """At most `size` rows at a time."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def beside(self, other: Labelled) -> Labelled:
        """These rows and then the others: a mixed batch, with a task and a context for each row."""
        own, others = self.by_row(), other.by_row()
        pairs = ((getattr(own, name), getattr(others, name)) for name in TENSORS)
        x, y, task, context = (torch.cat([one, two.to(one.device)]) for one, two in pairs)
        return replace(self, x=x, y=y, task=task, context=context)

    def by_row(self) -> Labelled:
        """The same rows, with the task and the context written beside each."""

        def each(number: int | Tensor) -> Tensor:
            if isinstance(number, Tensor):
                return number
            return torch.full((len(self),), number, device=self.y.device)

        return replace(self, task=each(self.task), context=each(self.context))

    def through(self, model: nn.Module) -> Tensor:
        """The logits (B, classes) of a model that is told what `select` says."""
        if self.select == "none":
            return _logits(model, model(self.x))
        if self.select in ("found", "together"):
            assert isinstance(model, Superposed)
            known = model.recognisable
            one = len(known) == 1
            together = self.select == "together"
            found = None if one else model.recognise(self.x, among=known, together=together)
            return _logits(model, model(self.x, task=known[0] if found is None else found.task))
        told = self.task if self.select == "task" else self.context
        return _logits(model, model(self.x, task=told))


def _logits(model: nn.Module, returned: object) -> Tensor:
    """What a network returned, if it is a tensor."""
    if not isinstance(returned, Tensor):
        raise SuperposeError(
            f"{type(model).__name__} returned a {type(returned).__name__}, and learning needs "
            "logits, a tensor (rows, classes): wrap the network in a module whose forward returns "
            "them, such as self.net(x).logits"
        )
    return returned


TENSORS = ("x", "y", "task", "context")
