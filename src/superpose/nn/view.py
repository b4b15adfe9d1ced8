"""The view: what the layers use during one pass.

A pass puts its view into `active`, a thread-local, which the compiler can trace. `with
model.task(…)` says the task in `chosen`, a ContextVar, which each async task has for itself; a
layer that is called or read while no pass runs makes its view from that.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ClassVar, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from superpose.contexts import Context
from superpose.errors import SuperposeError

P = ParamSpec("P")
R = TypeVar("R")

Ids = int | list[int]  # the number of a task, or of one for each row


class LayerView(NamedTuple):
    """A context for each bound weight (none if W is closed), and private tensors by name.

    For rows of many tasks both have a leading dimension of rows, `gate` tells which rows W is open
    to (empty if all), and `each` has the views of the batch's tasks, for layers that run them one
    after the other.
    """

    contexts: dict[str, Context]
    tensors: dict[str, Tensor]
    gate: tuple[Tensor, ...] = ()
    each: tuple[LayerView, ...] = ()


class View(NamedTuple):
    """The views of all layers, by path. All of it is tensors: data to `torch.compile` and `vmap`.

    In a mixed batch, `rows` (B,) has the place of each row's task among the tasks of the batch.
    """

    layers: dict[str, LayerView]
    rows: Tensor | None = None


def in_a_list(
    layers: dict[str, LayerView],
) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], dict[str, LayerView]]]:
    """The tensors of some views, and how to make the views of others: quicker than as a tree."""
    tensors: list[Tensor] = []
    parts = []
    for path, own in layers.items():
        rest, tree = tree_flatten((own.contexts, own.gate)) if own.contexts else ([], None)
        tensors += [*own.tensors.values(), *rest]
        parts.append((path, list(own.tensors), len(rest), tree))

    def views_of(others: Sequence[Tensor]) -> dict[str, LayerView]:
        given, made = iter(others), {}
        for path, names, count, tree in parts:
            own = {name: next(given) for name in names}
            rest = [next(given) for _ in range(count)]
            contexts, gate = ({}, ()) if tree is None else tree_unflatten(rest, tree)
            made[path] = LayerView(contexts, own, gate)
        return made

    return tensors, views_of


class Home:
    """Which model a layer belongs to; a copy of a model has a home of its own."""


class Viewing(Protocol):
    """The part of a model that layers ask for a view."""

    def view_of(self, ids: Ids) -> View:
        """Contexts and private tensors of a task."""


class _Active(threading.local):
    def __init__(self) -> None:
        self.view: View | None = None
        self.home: Home | None = None
        self.again = False  # activations are computed again: statistics were counted already


active = _Active()
chosen: ContextVar[Mapping[Home, tuple[Viewing, Ids]]] = ContextVar("chosen", default={})  # noqa: B039


@contextmanager
def viewing(view: View | None, home: Home | None, again: bool = False) -> Iterator[None]:
    """Let the layers of a model use this view."""
    before = active.view, active.home, active.again
    active.view, active.home, active.again = view, home, again
    try:
        yield
    finally:
        active.view, active.home, active.again = before


def same_task() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The `context_fn` of `torch.utils.checkpoint`: activations are computed again as they were.

    >>> from torch.utils.checkpoint import checkpoint
    >>> checkpoint(torch.sin, torch.ones(1), use_reentrant=False, context_fn=same_task)
    tensor([0.8415])
    """
    return nullcontext(), _Again(active.view, active.home)


class _Again:
    """The same view as before, whenever a gradient goes through once more."""

    def __init__(self, view: View | None, home: Home | None) -> None:
        self.view, self.home = view, home
        self.entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self.entered.append(viewing(self.view, self.home, again=True))
        self.entered[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self.entered.pop().__exit__(*error)


def no_task(path: str) -> SuperposeError:
    """The error of a layer that is not told the task."""
    return SuperposeError(
        f"no task is active for layer {path!r}: call model(x, task=…), or wrap the call in `with "
        "model.task(…):`, with one task where a part of the model is called by itself; "
        "torch.utils.checkpoint takes use_reentrant=False and context_fn=superpose.same_task"
    )


def outside(home: Home, path: str) -> View | None:
    """The view for a layer that is called, or read, while no pass runs but a task was chosen."""
    known = chosen.get()
    if home not in known:
        return None
    model, ids = known[home]
    if not isinstance(ids, int) or torch._C._current_graph_task_id() != -1:
        raise no_task(path)  # a backward() computes activations again: whose, was not said
    return model.view_of(ids)


class untraced(Generic[P, R]):  # noqa: N801 (it is used as a decorator)
    """A method that `torch.compile` leaves alone, as with `torch.compiler.disable`.

    That decorator imports the compiler, which doubles the time of `import torch`. This one applies
    it when the method is next looked up after something else has imported the compiler, which
    `torch.compile(model)` does before it traces anything.
    """

    waiting: ClassVar[list[untraced[Any, Any]]] = []

    def __init__(self, function: Callable[P, R], recursive: bool = True) -> None:
        self.function, self.recursive = function, recursive

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name
        self.waiting.append(self)

    def __get__(self, instance: object, owner: type) -> Callable[..., R]:
        if "torch._dynamo" in sys.modules:
            while self.waiting:
                self.waiting.pop().settle()
            found: Callable[..., R] = getattr(owner if instance is None else instance, self.name)
            return found
        return cast(Callable[..., R], self.function.__get__(instance, owner))

    def settle(self) -> None:
        """Become `torch.compiler.disable`."""
        disabled = torch.compiler.disable(self.function, recursive=self.recursive)
        setattr(self.owner, self.name, disabled)
