"""All that the next step depends on."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.learning.finder import Finder
from superpose.learning.guards import Guard
from superpose.learning.metrics import Record

TOO_MUCH = 100.0  # times the loss of the first step: no task that is learned comes near


class Training:
    """Model, optimiser, guard, random state, how many steps are done and the loss since when."""

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        guard: Guard,
        finder: Finder | None = None,
    ) -> None:
        self.model, self.optimiser, self.guard, self.finder = model, optimiser, guard, finder
        self.step = 0
        self._steps = 0  # since the last record
        self._loss = self._last = torch.zeros(())
        self._first_loss = torch.zeros(())

    def count(self, loss: Tensor) -> None:
        """A step is done."""
        self.step += 1
        self._steps += 1
        self._last = loss.detach()
        if self.step == 1:
            self._first_loss = self._last
        self._loss = self._last if self._steps == 1 else self._loss + self._last

    def mean_loss(self) -> float:
        """The mean loss since the last record."""
        return float(self._loss) / max(self._steps, 1)

    def record(self, task: int, found: dict[str, float], end: bool) -> Record:
        """Tell what was measured after this step; the mean loss is counted anew from here."""
        mean, self._steps = self.mean_loss(), 0
        return {"step": self.step, "task": task, "loss": mean, "accuracy": found, "end": end}

    def check(self) -> None:
        """Stop a run that learns nothing any more, before it writes a table of guesses."""
        mean, first = self.mean_loss(), float(self._first_loss)
        if not math.isfinite(mean):
            raise _diverged(self.step, f"the loss is {mean}")
        if mean > TOO_MUCH * max(first, 1.0):
            raise _diverged(self.step, f"the loss is {mean:.3g}, {first:.3g} at first")
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if float(self._last) > 0 and not any(bool(gradient.any()) for gradient in gradients):
            raise _diverged(self.step, "all gradients are zero, so no unit is alive")

    def save(self) -> dict[str, Any]:
        """Tell all of it."""
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "guard": self.guard.state_dict(),
            "random": _random_state(),
            "step": self.step,
            "steps": self._steps,
            "loss": self._loss,
            "first_loss": float(self._first_loss),
            **({} if self.finder is None else {"found": self.finder.state_dict()}),
        }

    def load(self, saved: dict[str, Any], to_go_on: bool = True) -> None:
        """Go on from what `save` told, or only read what was learned."""
        if self.finder is not None:
            self.finder.load_state_dict(saved["found"])
        self.model.load_state_dict(saved["model"])
        if to_go_on:
            self.optimiser.load_state_dict(saved["optimiser"])
        self.guard.load_state_dict(saved["guard"])
        _set_random_state(saved["random"])
        self.step, self._steps = saved["step"], saved["steps"]
        self._loss = saved["loss"].to(next(self.model.parameters()).device)
        self._first_loss = torch.tensor(saved["first_loss"])


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def _diverged(step: int, what: str) -> SuperposeError:
    return SuperposeError(
        f"learning broke down at step {step}: {what}; try a lower learning rate (lr)"
    )
