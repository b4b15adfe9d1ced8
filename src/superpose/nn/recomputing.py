"""Activations that are computed again, for their gradient: they have the task that they had.

`torch.utils.checkpoint` calls layers while `backward()` runs, when their model does not. So each
pass tells the outputs that it gives, and through which `backward()` begins, which selection it had.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from superpose.errors import SuperposeError
from superpose.nn.private import modules
from superpose.nn.selection import Selection, Stale, active


@dataclass(eq=False)
class Pass:
    """A pass of a model, whose selection is not known if rows were mapped or grouped."""

    model: nn.Module
    selection: Selection | None

    @functools.cached_property
    def layers(self) -> set[int]:
        """The modules of the model, by identity."""
        return {id(module) for module in modules(self.model)}


class Passes(list[Pass]):
    """Those that a `backward()` goes back through."""

    def end(self) -> None:
        """It is at its end, if it did not fail: then it forgets this list, and does not call it."""


_backward: WeakValueDictionary[int, Passes] = WeakValueDictionary()
"""The passes of each running `backward()`, by its number; it holds them itself."""


def follow(made: Pass, outputs: Iterable[Tensor]) -> None:
    """Let a `backward()` that begins at the outputs of a pass know of the pass."""

    def begin(_: Any) -> None:
        number = torch._C._current_graph_task_id()
        passes = _backward.get(number)
        if passes is None:
            passes = _backward[number] = Passes()
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(passes.end)
        if made not in passes:
            passes.append(made)

    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    nodes = {tensor.grad_fn for tensor in outputs if not wrapped(tensor)}
    for node in nodes:
        if node is not None:
            node.register_prehook(begin)


def recomputing() -> bool:
    """Whether activations are computed again, for their gradient."""
    if active.again or torch.compiler.is_compiling():
        return active.again
    return torch._C._current_graph_task_id() != -1


def recomputed(layer: nn.Module) -> Selection | None:
    """The selection of the pass in which a layer is called again; None if there is no such pass."""
    if torch.compiler.is_compiling() or not _backward or not recomputing():
        return None
    known = _backward.get(torch._C._current_graph_task_id())
    passes: Iterable[Pass] = () if known is None else known
    if known is None:  # it is a backward() inside another one
        passes = [one for several in list(_backward.values()) for one in several]
    found = [one.selection for one in passes if id(layer) in one.layers]
    if len(found) > 1 or any(selection is None for selection in found):
        raise SuperposeError(
            "activations of several tasks are computed again in one backward(), and which are "
            "whose is not known: give torch.utils.checkpoint use_reentrant=False and "
            "context_fn=superpose.same_task, or call backward() for one task at a time"
        )
    return found[0] if found else None


class Again(AbstractContextManager[None]):
    """Runs layers with a selection once more, as often as it is entered."""

    def __init__(self, selection: Selection | None) -> None:
        self.selection = selection

    def __enter__(self) -> None:
        self.before = active.selection, active.again
        active.selection, active.again = self.selection, True

    def __exit__(self, *error: object) -> None:
        active.selection, active.again = self.before


def same_task() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The `context_fn` of `torch.utils.checkpoint`, for passes of several tasks in one backward().

    Activations are computed again with the task that they had.

    >>> from torch.utils.checkpoint import checkpoint
    >>> checkpoint(torch.sin, torch.ones(1), use_reentrant=False, context_fn=same_task)
    tensor([0.8415])
    """
    selection, mapped = active.selection, torch._C._functorch.is_batchedtensor
    if selection is not None and any(map(mapped, tree_leaves(selection.layers))):
        raise Stale("activations that are computed again cannot be mapped over rows")
    return nullcontext(), Again(active.selection)


def current(layer: nn.Module) -> Selection | None:
    """The selection of the pass that runs, or of the one in which a layer is called again."""
    return active.selection if active.selection is not None else recomputed(layer)
