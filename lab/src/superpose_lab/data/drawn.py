"""Tasks drawn from the classes of one data set: hundreds of them, each of a few classes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from superpose import SuperposeError
from superpose.learning import Batch
from superpose_lab.checks import at_least_one
from superpose_lab.data.image_stream import Periodic
from superpose_lab.data.shuffle import CLASSES, ORDER, ROWS, shuffle


class Split(NamedTuple):
    """Rows (N, …) as they are stored, and their classes (N,)."""

    x: Tensor
    y: Tensor


class Splits(NamedTuple):
    """Rows to learn from, rows to choose settings by, and rows for the result."""

    train: Split
    validation: Split
    test: Split


def split_off(rows: Split, share: float, seed: int = 0) -> tuple[Split, Split]:
    """Split off a share of each class, in the same way on every machine: the rest, and the share.

    >>> rows = Split(torch.arange(8), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    >>> kept, held_out = split_off(rows, 0.25)
    >>> len(kept.y), held_out.y.tolist()
    (6, [0, 1])
    """
    kept, off = [], []
    for one in rows.y.unique().tolist():
        chosen = (rows.y == one).nonzero()[:, 0]
        chosen = chosen[shuffle(len(chosen), seed, ROWS, one)]
        number = round(share * len(chosen))
        off.append(chosen[:number])
        kept.append(chosen[number:])
    first, second = torch.cat(kept), torch.cat(off)
    return Split(rows.x[first], rows.y[first]), Split(rows.x[second], rows.y[second])


def drawn(classes: int, group: int, seed: int) -> Iterator[list[int]]:
    """Sets of `group` classes without end: the classes are shuffled and cut, again and again.

    The first `classes // group` have no class in common, and no set comes twice.

    >>> [sorted(one) for one in islice(drawn(4, 2, seed=0), 3)]
    [[1, 2], [0, 3], [0, 2]]
    """
    seen = set()
    for number in count():
        order = shuffle(classes, seed, CLASSES, number).tolist()
        for start in range(0, classes - group + 1, group):
            chosen = order[start : start + group]
            if frozenset(chosen) not in seen:
                seen.add(frozenset(chosen))
                yield chosen


@dataclass(frozen=True, eq=False)
class DrawnTasks(Periodic):
    """`number` tasks of `group` classes, `period` steps each; labels are counted from 0 in each.

    The classes of each task are drawn, or are those of `sets`. More tasks of the same seed begin
    with the same ones. `prepare` makes a network's inputs of the rows of a batch. A task is tested
    on at most `tested` rows, of the split named `test_on`.
    """

    name: str
    splits: Splits = field(repr=False)
    group: int
    number: int
    period: int
    batch_size: int
    seed: int = 0
    prepare: Callable[[Tensor], Tensor] = field(default=lambda x: x, repr=False)
    tested: int = 500
    test_on: str = "test"
    sets: list[list[int]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        at_least_one(tasks=self.number, period=self.period, batch_size=self.batch_size)
        classes = int(self.splits.train.y.max()) + 1
        sets = islice(drawn(classes, self.group, self.seed), self.number)
        object.__setattr__(self, "sets", self.sets or list(sets))
        object.__setattr__(self, "_pools", {})

    _pools: dict[tuple[str, int], Split] = field(init=False, repr=False)

    @property
    def tasks(self) -> int:
        return self.number

    def batch(self, step: int) -> Batch:
        task, within = divmod(step, self.period)
        x, y = self._pool("train", task)
        if len(y) < self.batch_size:
            raise SuperposeError(
                f"batch_size {self.batch_size} is more than the {len(y)} rows of task {task}"
            )
        epoch, place = divmod(within, len(y) // self.batch_size)
        order = shuffle(len(y), self.seed, ORDER, task, epoch)
        rows = order[place * self.batch_size : (place + 1) * self.batch_size]
        return Batch(self.prepare(x[rows]), y[rows], task, task)

    def rows(self, task: int) -> Split:
        """The rows that a task learns from, as they are stored."""
        return self._pool("train", task)

    def test(self, task: int) -> tuple[Tensor, Tensor]:
        x, y = self._pool(self.test_on, task)
        rows = shuffle(len(y), 0, ROWS, task)[: self.tested]
        return self.prepare(x[rows]), y[rows]

    def describe(self) -> dict[str, Any]:
        names = ("group", "number", "period", "batch_size", "seed", "tested", "test_on")
        rows = {name: len(split.y) for name, split in self.splits._asdict().items()}
        settings = {name: getattr(self, name) for name in names}
        return {"stream": f"drawn from {self.name}", **settings, "rows": rows}

    def _pool(self, split: str, task: int) -> Split:
        """The rows of a task's classes; those of the task before are let go."""
        if (split, task) not in self._pools:
            for held in [key for key in self._pools if key[0] == split]:
                del self._pools[held]
            x, y = getattr(self.splits, split)
            chosen = torch.tensor(self.sets[task])
            matches = y[:, None] == chosen  # (N, group)
            rows = matches.any(1).nonzero()[:, 0]
            self._pools[split, task] = Split(x[rows], matches[rows].long().argmax(1))
        return self._pools[split, task]
