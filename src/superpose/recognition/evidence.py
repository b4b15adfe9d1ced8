"""Evidence: what speaks for each task, of each row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from superpose.model import Batch, Name, Superposed


class Judged(NamedTuple):
    """Scores of rows and tasks (B, K), the larger the likelier, and how unusual each row is."""

    scores: Tensor
    surprise: Tensor | None = None  # deviations beyond what is usual for the task, if it can tell


class Evidence(ABC):
    """How likely rows are of which task, each row by itself."""

    @abstractmethod
    def judge(self, model: Superposed, batch: Batch, tasks: list[int]) -> Judged:
        """Compare the rows of a batch with tasks, given by their numbers.

        The model is in evaluation mode, and there are no gradients.
        """


def names_of(model: Superposed) -> dict[int, Name]:
    """The name of each task, by its number."""
    return {number: name for name, number in model.superposition.names.items()}


def listed(model: Superposed, numbers: list[int]) -> str:
    """The names of tasks, the first few of them."""
    names = names_of(model)
    shown = ", ".join(repr(names[number]) for number in numbers[:5])
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    return ("task " if len(numbers) == 1 else "tasks ") + shown + more
