"""The contexts of one layer, derived on first use and kept in a bounded cache."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

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
        return cache.get(self, task, device, dtype)


class ContextCache:
    """Least recently used contexts, at most `max_bytes` of them; safe to share between threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[object, tuple[Context, int]] = OrderedDict()
        self._lock = Lock()

    def get(
        self, layer: LayerContext, task: int, device: torch.device, dtype: torch.dtype
    ) -> Context:
        """The context, derived now if it is not here."""
        name = (layer, task, device, dtype)
        with self._lock:
            if name in self._entries:
                self._entries.move_to_end(name)
                return self._entries[name][0]
        context = layer.derive(task).to(device, dtype)
        size = _bytes(context)
        with self._lock:
            if name not in self._entries:
                self._entries[name] = (context, size)
                self.bytes += size
            while self.bytes > self.max_bytes and len(self._entries) > 1:
                _, (_, freed) = self._entries.popitem(last=False)
                self.bytes -= freed
        return context

    def clear(self) -> None:
        """Forget everything; contexts are derived again when they are wanted."""
        with self._lock:
            self._entries.clear()
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
