"""Layers used by themselves, outside a superposed model: they are told the task in each call."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from superpose import contexts
from superpose.contexts import Drawn, Family, LayerContext, cache
from superpose.errors import SuperposeError
from superpose.nn.complex import make_complex
from superpose.nn.forms.linear import Projection
from superpose.nn.kinds import Acts
from superpose.nn.layer import Bound, Layer, layer_class, of_task
from superpose.nn.names import joined
from superpose.nn.options import Options
from superpose.nn.registry import FORMS
from superpose.nn.view import Home, LayerView, View, viewing


class Standalone(nn.Module):
    """A plain layer with a context for each task, `layer(x, task=…)`; `task` may be one per row.

    The constructor takes the plain layer's arguments, then `family` (a name or a family), `seed`
    and `layer` (its name), which decide its contexts, and `conv`, "kernel" or "channel".
    """

    complex_valued: ClassVar[bool] = False

    def __init__(
        self,
        *arguments: Any,
        family: str | Family | None = None,
        seed: int = 0,
        layer: str | None = None,
        conv: str = "kernel",
        **options: Any,
    ) -> None:
        plain: Any = type(self)._plain_class()
        plain.__init__(self, *arguments, **options)
        name = plain.__name__ if layer is None else layer
        chosen = contexts.family(family or ("complex" if self.complex_valued else "binary"))
        if isinstance(chosen, Drawn) and chosen.learnable:
            raise SuperposeError(
                f"{type(chosen).__name__}(learnable=True) is learned for each task, which only a "
                "superposed model knows: superpose() a network, or leave learnable out"
            )
        if self.complex_valued:
            make_complex(self, seed, name)
        home, settings = Home(), Options(conv=conv)
        out = self._modules.get("out_proj")
        if out is not None:
            _become(out, Projection, f"{name}.out_proj", chosen, seed, home, settings)
        public: Any = type(self)
        made = standalone_class(public)
        _become(self, FORMS[plain], name, chosen, seed, home, settings, made)

    @classmethod
    def _plain_class(cls) -> Any:
        return next(one for one in cls.__mro__ if one in FORMS)


def _become(
    module: Any,
    form: Any,
    path: str,
    family: Family,
    seed: int,
    home: Home,
    options: Options,
    made: Any = None,
) -> None:
    layouts = form.layouts(module, options)
    bound = {
        name: Bound(
            LayerContext(family, seed, joined(path, name), *at.inputs(module._parameters[name])), at
        )
        for name, at in layouts.items()
    }
    plain = type(module)
    module.__class__ = made or layer_class(form, plain, tuple(layouts))
    module.path, module.plain_class, module.home, module.bound = path, plain, home, bound
    module.private, module.row_dim, module.acts, module.has_base = (), 0, Acts.of([]), False


@functools.cache
def standalone_class(public: Any) -> Any:
    """The class of the layers that a public class makes."""
    plain = public._plain_class()
    form: Any = FORMS[plain]

    def forward(self: Any, *inputs: Any, task: Any, **options: Any) -> Any:
        with viewing(_view(self, task), self.home):
            return form.forward(self, *inputs, **options)

    names = (
        n for n in ("weight", "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    )
    recurrent = issubclass(plain, nn.RNNBase)
    members: dict[str, Any] = {"forward": forward, "__reduce__": _reduce, "_public": public}
    members |= {} if recurrent else {name: of_task(name) for name in names}
    if recurrent:
        members["_flat_weights"] = property(_flat_weights, lambda self, value: None)
    return type(public.__name__, (form, public), members)


def _flat_weights(self: Any) -> list[Any]:
    own, _ = self.own() if self.home is not None else (None, None)
    return [self.read(name, own) for name in self._flat_weights_names]


def _view(layer: Any, task: Any) -> View:
    """Contexts of a task, or of one for each row."""
    ids = np.asarray(task.tolist() if isinstance(task, Tensor) else task)
    if ids.dtype.kind not in "iu" or ids.ndim > 1 or not ids.size:
        raise SuperposeError(
            f"task={task!r}: give one whole number, or a list or tensor with one per row"
        )
    inside = [module for module in layer.modules() if isinstance(module, Layer)]
    if not ids.ndim:
        return View({one.path: _one(one, int(ids)) for one in inside})
    unique, rows = np.unique(ids, return_inverse=True)
    tasks, index = unique.tolist(), torch.from_numpy(rows)
    found = {}
    for one in inside:
        each = tuple(_one(one, k) for k in tasks) if layer.runs_by_task() else ()
        like: dict[str, Any] = {name: one._parameters[name] for name in one.bound}
        index = index.to(next(iter(like.values())).device)
        stacked = {
            name: cache.table(bound.context, like[name].device, like[name].real.dtype).rows(
                tasks, index
            )
            for name, bound in one.bound.items()
        }
        found[one.path] = LayerView(stacked, {}, (), each)
    return View(found, index)


def _one(layer: Layer, task: int) -> LayerView:
    made = {}
    for name, bound in layer.bound.items():
        like = layer._parameters[name]
        assert like is not None
        made[name] = cache.table(bound.context, like.device, like.real.dtype).one(task)
    return LayerView(made, {})


def _reduce(layer: Any) -> Any:
    return _empty, (type(layer)._public,), layer.__getstate__()


def _empty(public: Any) -> Any:
    made = standalone_class(public)
    return made.__new__(made)


class Linear(Standalone, nn.Linear):
    """`nn.Linear` with a context for each task.

    >>> layer = Linear(8, 3, family="hadamard", seed=0)
    >>> layer(torch.ones(2, 8), task=[5, 7]).shape
    torch.Size([2, 3])
    """


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


class ComplexLinear(Standalone, nn.Linear):
    """A linear layer with complex weights and a complex context for each task."""

    complex_valued = True


class ComplexConv2d(Standalone, nn.Conv2d):
    """A convolution with complex weights and a complex context for each task."""

    complex_valued = True
