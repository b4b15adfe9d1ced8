"""The contexts of one layer, derived on first use and kept in a bounded cache."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import RLock

import numpy as np
import torch
from torch import Tensor

from superpose.contexts.base import Context, Drawn, Family, stack
from superpose.keys import Key


@dataclass(frozen=True)
class LayerContext:
    """A family applied to one weight: for each task, the context of its `dim` inputs.

    A weight of several groups (a grouped convolution) has an independent context for each group;
    they come stacked.
    """

    family: Family
    seed: int
    layer: str
    dim: int
    groups: int = 1

    def keys(self, task: int) -> list[Key]:
        """One key per group."""
        if self.groups == 1:
            return [Key(self.seed, self.layer, task)]
        return [Key(self.seed, f"{self.layer}:{group}", task) for group in range(self.groups)]

    def derive(self, task: int) -> Context:
        """C(task) from its key, in float64."""
        contexts = [self.family.context(key, self.dim) for key in self.keys(task)]
        return contexts[0] if self.groups == 1 else stack(contexts)

    def numbers(self, task: int) -> Tensor:
        """The numbers that a learnable family starts from."""
        assert isinstance(self.family, Drawn)
        drawn = torch.stack([self.family.draw(key, self.dim) for key in self.keys(task)])
        return drawn.squeeze(0)

    def make(self, numbers: Tensor) -> Context:
        """C of learned numbers."""
        assert isinstance(self.family, Drawn)
        return self.family.make(numbers)

    def fixed(self, task: int, device: torch.device, dtype: torch.dtype) -> Context:
        """C(task) on a device, from the cache when it is there."""
        return cache.table(self, device, dtype).one(task)


class Table:
    """The contexts of one layer that were used so far, side by side, so that rows are one look-up.

    Rows of the table are only ever added; when it has to grow, its tensors are replaced, and what
    was given out before keeps the old ones.
    """

    def __init__(
        self, cache: ContextCache, layer: LayerContext, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.cache, self.layer, self.device, self.dtype = cache, layer, device, dtype
        self.bytes = 0
        self._clear()

    def _clear(self) -> None:
        self.slots: dict[int, int] = {}
        self.singles: dict[int, Context] = {}
        self.stacked: Context | None = None
        self.capacity = 0

    def one(self, task: int) -> Context:
        """The context of a task."""
        single = self.singles.get(task)
        if single is None:
            with self.cache.lock, torch._C._DisableFuncTorch():
                slot, stacked = self._slots([task])[0], self._stacked()
                single = self.singles[task] = stacked.map(lambda tensor: tensor[slot])
        return single

    def rows(self, unique: list[int], row: Tensor) -> Context:
        """The contexts of tasks, stacked, that of `unique[row[i]]` for row i."""
        with self.cache.lock:
            slots = [self.slots.get(task, -1) for task in unique]
            if -1 in slots:
                slots = self._slots(unique)
            stacked = self.stacked
        assert stacked is not None
        places = torch.from_numpy(np.array(slots))
        if places.device != self.device:
            places = places.to(self.device)
        index = places.index_select(0, row)
        return stacked.take(index)

    def _stacked(self) -> Context:
        assert self.stacked is not None
        return self.stacked

    def _slots(self, tasks: list[int]) -> list[int]:
        missing = [task for task in tasks if task not in self.slots]
        if missing:
            self._add(tasks, missing)
        return [self.slots[task] for task in tasks]

    @torch.inference_mode(False)  # what is kept may be used for training later
    def _add(self, wanted: list[int], missing: list[int]) -> None:
        if self.bytes > self.cache.max_bytes:  # one layer fills the cache: start again
            self._clear()
            missing = wanted
        with torch._C._DisableFuncTorch():  # kept tensors must not belong to a `torch.func.grad`
            new = [self.layer.derive(task).to(self.device, self.dtype) for task in missing]
        used = len(self.slots)
        if self.stacked is None or used + len(new) > self.capacity:
            self.capacity = max(2 * used, used + len(new))
            self.singles.clear()
            old = [] if self.stacked is None else [self.stacked]
            self.stacked = new[0].map(self._grown, *old)
        for slot, context in enumerate(new, used):
            # `data`, because autograd may hold rows given out before, which this does not change
            self.stacked.map(lambda rows, row, slot=slot: rows.data[slot].copy_(row), context)
        self.slots |= {task: slot for slot, task in enumerate(missing, used)}
        self.cache.resize(self, _bytes(self.stacked))

    def _grown(self, like: Tensor, old: Tensor | None = None) -> Tensor:
        grown = like.new_empty((self.capacity, *like.shape))
        if old is not None:
            grown[: len(old)] = old
        return grown


class ContextCache:
    """Tables of the layers used last, about `max_bytes` of them; threads may share it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.lock = RLock()
        self._tables: OrderedDict[object, Table] = OrderedDict()

    def table(self, layer: LayerContext, device: torch.device, dtype: torch.dtype) -> Table:
        """The table of a layer."""
        name = (layer, device, dtype)
        with self.lock:
            table = self._tables.get(name)
            if table is None:
                table = self._tables[name] = Table(self, layer, device, dtype)
            self._tables.move_to_end(name)
            return table

    def resize(self, table: Table, size: int) -> None:
        """Take note of a table's size, and drop the tables used longest ago if that is too much."""
        self.bytes += size - table.bytes
        table.bytes = size
        while self.bytes > self.max_bytes and len(self._tables) > 1:
            _, dropped = self._tables.popitem(last=False)
            self.bytes -= dropped.bytes

    def clear(self) -> None:
        """Forget everything; contexts are derived again when they are wanted."""
        with self.lock:
            self._tables.clear()
            self.bytes = 0


def _bytes(context: Context) -> int:
    total = 0

    def add(tensor: Tensor) -> Tensor:
        nonlocal total
        total += tensor.nbytes
        return tensor

    context.map(add)
    return total


cache = ContextCache(max_bytes=256 * 2**20)
"""Derived contexts of this process; they are a pure function of their keys, so sharing is safe."""
