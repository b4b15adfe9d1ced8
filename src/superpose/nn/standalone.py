"""Layers used by themselves, outside a superposed model: they are told the task in each call."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from superpose import contexts
from superpose.contexts import Drawn, Family, LayerContext, cache
from superpose.errors import SuperposeError
from superpose.nn.forms import declared  # noqa: F401 (it registers PyTorch's layers)
from superpose.nn.forms.linear import Projection
from superpose.nn.kinds import Acts
from superpose.nn.layer import Bound, Layer
from superpose.nn.names import joined
from superpose.nn.options import Options
from superpose.nn.reading import layer_class
from superpose.nn.registry import FORMS
from superpose.nn.view import Home, LayerView, View, active, viewing


class Standalone(nn.Module):
    """A plain layer with a context for each task, `layer(x, task=…)`; `task` may be one per row.

    The constructor takes the plain layer's arguments, then `family` (a name or a family), `seed`
    and `layer` (its name), which decide its contexts, and `conv`, "kernel" or "channel".

    >>> layer = Linear(8, 3, family="hadamard", seed=0)
    >>> layer(torch.ones(2, 8), task=[5, 7]).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        *arguments: Any,
        family: str | Family = "binary",
        seed: int = 0,
        layer: str | None = None,
        conv: str = "kernel",
        **options: Any,
    ) -> None:
        public: Any = type(self)
        plain: Any = next(one for one in public.__mro__ if one in FORMS)
        plain.__init__(self, *arguments, **options)
        chosen, name = contexts.family(family), plain.__name__ if layer is None else layer
        if isinstance(chosen, Drawn) and chosen.learnable:
            raise SuperposeError(
                f"{type(chosen).__name__}(learnable=True) is learned for each task, which only a "
                "superposed model knows: superpose() a network, or leave learnable out"
            )
        parts: list[Any] = [(self, FORMS[plain], name)]
        if "out_proj" in self._modules:
            parts.append((self.out_proj, Projection, f"{name}.out_proj"))
        home = Home()
        for module, form, path in parts:
            _become(module, form, path, chosen, seed, home, Options(conv=conv))
        made: Any = type(self)
        self.__class__ = standalone_class(public, made)


def _become(
    module: Any, form: Any, path: str, family: Family, seed: int, home: Home, options: Options
) -> None:
    layouts, own = form.layouts(module, options), module._parameters
    bound = {
        name: Bound(LayerContext(family, seed, joined(path, name), *at.inputs(own[name])), at)
        for name, at in layouts.items()
    }
    plain: Any = type(module)
    module.__class__ = layer_class(form, plain, tuple(layouts))
    module.path, module.plain_class, module.home, module.bound = path, plain, home, bound
    module.private, module.row_dim, module.acts, module.has_base = (), 0, Acts.of([]), False


@functools.cache
def standalone_class(public: Any, made: Any) -> Any:
    """The class of the layers that a public class makes: they are called with a task."""

    def forward(self: Any, *inputs: Any, task: Any = None, **options: Any) -> Any:
        if active.home is self.home:  # the rows of one task
            return made.forward(self, *inputs, **options)
        with viewing(_view(self, task), self.home):
            return made.forward(self, *inputs, **options)

    members = {"forward": forward, "_parts": (public, made._made_of), "__reduce__": _reduce}
    return type(public.__name__, (made,), members)


def _reduce(layer: Any) -> Any:
    return _empty, type(layer)._parts, layer.__getstate__()


def _empty(public: Any, parts: Any) -> Any:
    made = standalone_class(public, layer_class(*parts))
    return made.__new__(made)


def _view(layer: Any, task: Any) -> View:
    """Contexts of a task, or of one for each row."""
    ids = np.asarray(task.tolist() if isinstance(task, Tensor) else task)
    if ids.dtype.kind not in "iu" or ids.ndim > 1 or not ids.size:
        raise SuperposeError(
            f"task={task!r}: give one whole number, or a list or tensor with one per row"
        )
    unique, places = np.unique(ids, return_inverse=True)
    index = torch.from_numpy(places) if ids.ndim else None
    inside = [module for module in layer.modules() if isinstance(module, Layer)]
    return View({one.path: _view_of(one, unique.tolist(), index) for one in inside}, index)


def _view_of(layer: Layer, tasks: list[int], index: Tensor | None) -> LayerView:
    found: dict[str, Any] = {}
    for name, bound in layer.bound.items():
        like = layer.stored(name)
        table = cache.table(bound.context, like.device, like.real.dtype)
        found[name] = (
            table.one(tasks[0]) if index is None else table.rows(tasks, index.to(like.device))
        )
    each = [_view_of(layer, [task], None) for task in tasks] if index is not None else []
    return LayerView(found, {}, (), tuple(each) if layer.runs_by_task() else ())


class Linear(Standalone, nn.Linear):
    """`nn.Linear` with a context for each task."""


class Conv1d(Standalone, nn.Conv1d):
    """`nn.Conv1d` with a context for each task."""


class Conv2d(Standalone, nn.Conv2d):
    """`nn.Conv2d` with a context for each task."""


class Conv3d(Standalone, nn.Conv3d):
    """`nn.Conv3d` with a context for each task."""


class ConvTranspose1d(Standalone, nn.ConvTranspose1d):
    """`nn.ConvTranspose1d` with a context for each task."""


class ConvTranspose2d(Standalone, nn.ConvTranspose2d):
    """`nn.ConvTranspose2d` with a context for each task."""


class ConvTranspose3d(Standalone, nn.ConvTranspose3d):
    """`nn.ConvTranspose3d` with a context for each task."""


class MultiheadAttention(Standalone, nn.MultiheadAttention):
    """`nn.MultiheadAttention` whose in- and out-projections have contexts for each task."""


class RNN(Standalone, nn.RNN):
    """`nn.RNN` with contexts for each task."""


class LSTM(Standalone, nn.LSTM):
    """`nn.LSTM` with contexts for each task."""


class GRU(Standalone, nn.GRU):
    """`nn.GRU` with contexts for each task."""
