"""Hooks: where a method of learning acts in the loop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from superpose.learning.labelled import Labelled


class Hook:
    """What the loop asks at each step: nothing is changed here, a subclass writes what it needs.

    The loop calls, for a run, a step and a task::

        begin(model)
            batch = before_forward(batch)              replay adds rows, of other tasks too
            logits = batch.through(model)
            loss = after_forward(batch, logits, loss)  distillation adds to the loss
            after_backward()                           surgery changes the gradients
            after_step()                               the weights have moved
        after_task(batches, generator)                 at the end of each task but the last
        end()

    Random numbers come from the `generator`, or from one of its own that `state_dict` keeps, so
    that a run that was stopped goes on as if it had not been. Of several processes that learn
    together each sees the whole batch in `before_forward`, then its own `batch.rows` of it.
    """

    pace = 1.0
    """What the learning rate of all that tasks share is multiplied with."""

    def begin(self, model: nn.Module) -> None:
        """Take notice of the model."""

    def end(self) -> None:
        """Let go of it."""

    def before_forward(self, batch: Labelled) -> Labelled:
        """The rows to learn from, the stream's own first."""
        return batch

    def after_forward(self, batch: Labelled, logits: Tensor, loss: Tensor) -> Tensor:
        """The loss to lower; it comes as the cross-entropy of all rows."""
        return loss

    def after_backward(self) -> None:
        """Change the gradients."""

    def after_step(self) -> None:
        """Take notice of what the optimiser did."""

    def after_task(self, batches: Iterable[Labelled], generator: torch.Generator) -> None:
        """Remember the task that was just learned; its batches are made again, the latest first.

        The model is in evaluation mode.
        """

    def describe(self) -> dict[str, Any]:
        """Tell what it is, as JSON can hold it: a run is resumed with the same only."""
        return {"name": type(self).__name__}

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another left off."""

    @property
    def numbers(self) -> int:
        """How many numbers it keeps while learning."""
        return 0


class Hooks(Hook):
    """Several hooks, in order; none at all is a run without any."""

    def __init__(self, *hooks: Hook) -> None:
        self.hooks = hooks

    @property
    def pace(self) -> float:  # type: ignore[override]  # theirs may change as they learn
        """The product of theirs."""
        return math.prod(hook.pace for hook in self.hooks)

    def begin(self, model: nn.Module) -> None:
        """Let each take notice of the model."""
        for hook in self.hooks:
            hook.begin(model)

    def end(self) -> None:
        """Let each let go of it."""
        for hook in self.hooks:
            hook.end()

    def before_forward(self, batch: Labelled) -> Labelled:
        """Each is given the rows that the one before it gives."""
        for hook in self.hooks:
            batch = hook.before_forward(batch)
        return batch

    def after_forward(self, batch: Labelled, logits: Tensor, loss: Tensor) -> Tensor:
        """Each is given the loss that the one before it gives."""
        for hook in self.hooks:
            loss = hook.after_forward(batch, logits, loss)
        return loss

    def after_backward(self) -> None:
        """Each sees the gradients that the one before it leaves."""
        for hook in self.hooks:
            hook.after_backward()

    def after_step(self) -> None:
        """Let each take notice of the step."""
        for hook in self.hooks:
            hook.after_step()

    def after_task(self, batches: Iterable[Labelled], generator: torch.Generator) -> None:
        """Let each remember the task."""
        for hook in self.hooks:
            hook.after_task(batches, generator)

    def describe(self) -> dict[str, Any]:
        """What each of them is."""
        return {"hooks": [hook.describe() for hook in self.hooks]} if self.hooks else {}

    def state_dict(self) -> dict[str, Any]:
        """What each of them needs."""
        return {"hooks": [hook.state_dict() for hook in self.hooks]} if self.hooks else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Each goes on with its own."""
        for hook, saved in zip(self.hooks, state.get("hooks", ()), strict=True):
            hook.load_state_dict(saved)

    @property
    def numbers(self) -> int:
        """All that they keep."""
        return sum(hook.numbers for hook in self.hooks)
