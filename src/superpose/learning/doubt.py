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
from superpose.learning.guards import Guard
from superpose.learning.replay import by_row
from superpose.model import Superposed
from superpose.quiet import evaluating


class Doubt(Guard):
    """Uniform targets for `samples` rows of each batch, under contexts that are not theirs.

    A loop adds `penalty(task, x, output)` to its loss.
    """

    OPTIONS = ("strength", "samples", "seed")
    all_tasks = True

    def __init__(
        self, model: nn.Module, strength: float = 0.3, samples: int = 64, seed: int = 0
    ) -> None:
        if not strength >= 0 or samples < 1:
            raise SuperposeError(
                f"strength={strength}, samples={samples}: the strength of doubt is at least 0, and "
                "it needs at least one row of each batch"
            )
        super().__init__(model)
        if not isinstance(self.model, Superposed) or len(self.model.tasks) < 2:
            raise SuperposeError(
                "doubt is taught under a wrong context, so it needs a superposed network of two "
                "tasks or more: use it with a family, such as hadamard+doubt"
            )
        self.model: Superposed = self.model
        self.strength, self.samples, self.seed = strength, samples, seed
        self.generator = torch.Generator().manual_seed(seed)

    def penalty(self, task: Any, x: Tensor, output: Any) -> Tensor | float:
        """The cross-entropy with uniform targets under wrong contexts.

        With a base, a task that has not begun to learn stays its base, and is taught no doubt.
        """
        known = self.model.superposition
        x = x[: self.samples]
        given = torch.tensor([known.number(one) for one in by_row(task, len(x))[: len(x)]])
        numbers = self._learning(given)
        if len(numbers) < 2:
            return 0.0
        moved = torch.randint(1, len(numbers), given.shape, generator=self.generator)
        wrong = numbers[(torch.searchsorted(numbers, given) + moved) % len(numbers)]
        names = {number: name for name, number in known.names.items()}
        with evaluating(self.model):  # or wrong inputs would count as what the task has seen
            doubtful = self.model(x, task=[names[number] for number in wrong.tolist()])
        uncertain: Tensor = -doubtful.log_softmax(1).mean()
        return self.strength * uncertain

    def _learning(self, now: Tensor) -> Tensor:
        """The numbers of the tasks that learn or have learned, in order, as far as it shows.

        A base shows it, and so do statistics of inputs; otherwise it is all tasks.
        """
        model, learning = self.model, set(now.tolist())
        options, names = model.superposition.options, model.superposition.names
        if options.recognise is not None and not options.recognise.only_told and not options.base:
            learning |= {names[task] for task in model.recognisable}
        else:
            learning |= {number for number in names.values() if model.is_open(number)}
        return torch.tensor(sorted(learning))

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw on from there."""
        self.generator.set_state(state["generator"])
