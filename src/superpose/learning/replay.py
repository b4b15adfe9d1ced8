"""Experience replay: each step learns some rows of earlier steps beside its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from superpose.errors import at_least_one
from superpose.learning.hooks import Hook
from superpose.learning.labelled import TENSORS, Labelled


class Replay(Hook):
    """A reservoir of `samples` rows (Vitter 1985), `rows` of which are learned at each step.

    Of the n rows that the stream has dealt so far, each is kept with the same probability
    samples / n, whatever its task, so the memory does not grow with the tasks. Without `rows` a
    step replays as many rows as it has of its own.
    """

    def __init__(self, samples: int = 1000, rows: int | None = None, seed: int = 0) -> None:
        at_least_one(samples=samples, rows=1 if rows is None else rows)
        self.samples, self.rows, self.seed = samples, rows, seed
        self._forget()

    def begin(self, model: nn.Module) -> None:
        """Start with nothing kept."""
        self._forget()

    def _forget(self) -> None:
        self.kept: Labelled | None = None
        self.seen = 0
        self.generator = torch.Generator().manual_seed(self.seed)

    def before_forward(self, batch: Labelled) -> Labelled:
        """The batch, and beside it rows that are drawn from those kept before it."""
        more = None
        if self.kept is not None:
            count = len(batch) if self.rows is None else self.rows
            drawn = torch.randperm(len(self.kept), generator=self.generator)[:count]
            more = self.kept[drawn.to(self.kept.y.device)]
        self._keep(batch.by_row())
        return batch if more is None else batch.beside(more)

    def _keep(self, batch: Labelled) -> None:
        """Fill the reservoir; then row n takes one of n places at random, if it is one there is."""
        room = max(min(self.samples - self.seen, len(batch)), 0)
        if self.kept is None:
            self.kept = batch[torch.arange(room, device=batch.y.device)]  # a copy
        elif room:
            self.kept = self.kept.beside(batch[:room])
        numbers = torch.arange(self.seen + room, self.seen + len(batch)) + 1
        chances = torch.rand(len(numbers), generator=self.generator, dtype=torch.float64)
        places = (chances * numbers).long().tolist()
        taken = {place: row for row, place in enumerate(places, room) if place < self.samples}
        for name in TENSORS:
            own, new = getattr(self.kept, name), getattr(batch, name)
            own[list(taken)] = new[list(taken.values())].to(own.device)
        self.seen += len(batch)

    def describe(self) -> dict[str, Any]:
        """Its name and options."""
        options = {"samples": self.samples, "rows": self.rows, "seed": self.seed}
        return {**super().describe(), **options}

    def state_dict(self) -> dict[str, Any]:
        """The rows, how many were seen, and the state of the generator."""
        kept = {} if self.kept is None else {n: getattr(self.kept, n) for n in TENSORS}
        return {"kept": kept, "seen": self.seen, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the rows of another."""
        kept = {name: tensor.clone() for name, tensor in state["kept"].items()}
        self.kept = Labelled(**kept) if kept else None
        self.seen = state["seen"]
        self.generator.set_state(state["generator"])

    @property
    def numbers(self) -> int:
        """Inputs, labels, tasks and contexts of the rows."""
        if self.kept is None:
            return 0
        return sum(getattr(self.kept, name).numel() for name in TENSORS)
