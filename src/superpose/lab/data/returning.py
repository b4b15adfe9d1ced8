"""Permuted pixels whose tasks come back."""

from dataclasses import dataclass
from typing import ClassVar

from superpose.lab.data.permuting import Permuting


@dataclass(frozen=True, eq=False)
class Returning(Permuting):
    """Five permutations, twelve changes: tasks come back in an order that nobody tells.

    >>> from superpose.lab.data import load
    >>> stream = Returning(load("digits"), period=10)
    >>> len(stream), [stream.task_at(step) for step in (0, 10, 20, 30, 40)]
    (120, [0, 1, 2, 0, 3])
    """

    order: ClassVar[tuple[int, ...]] = (0, 1, 2, 0, 3, 1, 4, 3, 2, 4, 0, 1)
    tasks: int = 5

    def __len__(self) -> int:
        return self.period * len(self.order)

    def task_at(self, step: int) -> int:
        """Look it up."""
        return self.order[step // self.period]
