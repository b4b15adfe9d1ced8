"""Doubt: a network is taught to be uncertain under a wrong context.

Some rows of each batch are run in the context of another task, drawn for each, and

    loss + strength · mean over rows and classes of −log p(class | x, wrong context)

is least where all classes are as likely. Then the outputs alone tell the task of an input
(`model.recognise(x, evidence="entropy")`), and nothing is stored for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.learning.hooks import Hook
from superpose.learning.labelled import Labelled
from superpose.model import Superposed, private_state
from superpose.packing.inputs import evaluating
from superpose.recognition.inputs import names_of


class Doubt(Hook):
    """Uniform targets for `samples` rows of each batch, under contexts that are not theirs."""

    def __init__(self, strength: float = 0.3, samples: int = 64, seed: int = 0) -> None:
        if not strength >= 0 or samples < 1:
            raise SuperposeError(
                f"strength={strength}, samples={samples}: the strength of doubt is at least 0, and "
                "it needs at least one row of each batch"
            )
        self.strength, self.samples, self.seed = strength, samples, seed
        self.generator = torch.Generator().manual_seed(seed)

    def begin(self, model: nn.Module) -> None:
        """Look for contexts that can be wrong."""
        if not isinstance(model, Superposed) or len(model.tasks) < 2:
            raise SuperposeError(
                "doubt is taught under a wrong context, so it needs a superposed network of two "
                "tasks or more: use it with a family, such as hadamard+doubt"
            )
        self.model = model

    def after_forward(self, batch: Labelled, logits: Tensor, loss: Tensor) -> Tensor:
        """Add the cross-entropy with uniform targets under wrong contexts.

        With a base, a task that has not begun to learn stays its base, and is taught no doubt.
        """
        some = batch.by_row()[: self.samples]
        assert isinstance(some.context, Tensor)
        known = self.model.superposition
        given = torch.tensor([known.number(context) for context in some.context.tolist()])
        numbers = self._begun(given)
        if len(numbers) < 2:
            return loss
        own = torch.searchsorted(numbers, given)
        moved = torch.randint(1, len(numbers), own.shape, generator=self.generator)
        wrong = numbers[(own + moved) % len(numbers)]
        names = names_of(self.model)
        asked = [names[number] for number in wrong.tolist()]
        with evaluating(self.model):  # or wrong inputs would count as what the task has seen
            doubtful = self.model(some.x, task=asked)
        uncertain: Tensor = -doubtful.log_softmax(1).mean()
        return loss + self.strength * uncertain

    def _begun(self, now: Tensor) -> Tensor:
        """The numbers of the tasks that learn or have learned, in order, as far as it shows.

        A base shows it, and so do statistics of inputs; otherwise it is all tasks.
        """
        numbers = sorted(self.model.superposition.names.values())
        state, learning = private_state(self.model), set(now.tolist())
        kept = self.model.superposition.conversion.recognise
        if state.mark is not None:
            numbers = [n for n in numbers if n in learning or state.has_begun(n)]
        elif kept is not None and not kept.only_told:
            seen = set(map(self.model.superposition.number, self.model.recognisable))
            numbers = [n for n in numbers if n in learning or n in seen]
        return torch.tensor(numbers)

    def describe(self) -> dict[str, Any]:
        """Its name and options."""
        options = {"strength": self.strength, "samples": self.samples, "seed": self.seed}
        return {**super().describe(), **options}

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw on from there."""
        self.generator.set_state(state["generator"])
