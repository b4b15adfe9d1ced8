"""The class of a superposed model: made from the plain one, which it is in all else."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from superpose.model.container import Container
from superpose.model.mixed import run_mixed
from superpose.model.pretrained import generating, saving
from superpose.nn.reading import class_of, plain_forward
from superpose.nn.view import active, untraced

if TYPE_CHECKING:
    from superpose.model.tasks import Task


@functools.cache
def superposed_class(plain: Any, kind: Any) -> Any:
    """The class of a superposed model: of this kind, and the plain class in all else."""

    @functools.wraps(plain.forward)
    def forward(self: Any, *inputs: Any, task: Task | None = None, **options: Any) -> Any:
        known = self.superposition
        if task is None and active.view is not None and active.home is known.home:
            return plain.forward(self, *inputs, **options)  # one view for several passes
        ids = known.names.get(task) if task.__class__ in (int, str) else None
        ids = self._ids(task) if ids is None else ids
        if known.options.base:
            self._check_base(ids)
            if self.training:
                return self._run_with_base(ids, inputs, options)
        if ids.__class__ is int:
            return self.run(self.view_of(ids), *inputs, **options)
        return run_mixed(self, ids, self.mixed, inputs, options)

    forward.__signature__ = _with_task(plain_forward(plain))  # type: ignore[attr-defined]
    # the compiler would make a graph for each name of a task here; it starts with `run` instead
    members = {"forward": untraced(forward, recursive=False), "_plain": plain, "_kind": kind}
    if callable(getattr(plain, "generate", None)) and hasattr(plain, "save_pretrained"):
        members["generate"] = generating(plain)
    if callable(getattr(plain, "save_pretrained", None)):
        members["save_pretrained"] = saving(plain)
    contained = (Container,) if issubclass(plain, (nn.Sequential, nn.ModuleList)) else ()
    return type(f"{kind.__name__}{plain.__name__}", (kind, *contained, plain), members)


def _with_task(plain: Callable[..., Any]) -> inspect.Signature:
    """The signature of a forward pass, and `task`: trainers, `generate`, exporters look there."""
    signature = inspect.signature(plain)
    task = inspect.Parameter("task", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = {**signature.parameters, "task": task}
    return signature.replace(parameters=sorted(parameters.values(), key=lambda one: one.kind))


def empty_model(kind: Any, *parts: Any) -> Any:
    """An instance of a made class, for copies and pickles, which cannot name it."""
    made = superposed_class(parts[0] if len(parts) == 1 else class_of(*parts), kind)
    return made.__new__(made)
