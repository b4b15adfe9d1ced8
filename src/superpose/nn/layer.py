"""A superposed layer: the plain layer, whose tensors, when they are read, are those of the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from superpose.contexts import LayerContext
from superpose.errors import SuperposeError
from superpose.nn.kinds.kind import Acts  # transformers evaluates the annotations of a class
from superpose.nn.layout import Layout
from superpose.nn.names import inside
from superpose.nn.quantised import full
from superpose.nn.reading import view_of
from superpose.nn.view import (
    Home,
    LayerView,
    View,
    active,
    in_a_list,
    no_task,
    outside,
    viewing,
)

if TYPE_CHECKING:
    from superpose.nn.options import Options


class Bound(NamedTuple):
    """A weight that is bound: its contexts, and where its inputs lie."""

    context: LayerContext
    layout: Layout

    @property
    def grouped(self) -> bool:
        """Whether there are several groups, each with a context of its own."""
        return self.context.groups > 1


class Layer(nn.Module):
    """f(x; W₀ + W·C(k) + Bₖ·Aₖ, bₖ), whatever f the plain layer computes.

    A class made of a form and the plain class; `register` gives modules of other classes the
    forms below, or a subclass of this one. Rows of many tasks are computed by mapping the pass of
    one row over the rows (`by_row`, which a form may do more quickly), or task by task where rows
    of a task belong together (`runs_by_task`).
    """

    binds: ClassVar[bool] = True  # whether its class has weights that could be bound
    has_complex_form: ClassVar[bool] = False  # whether its weights may be complex numbers
    reads_once: ClassVar[bool] = False  # whether its forward may write to a tensor that it reads
    one_by_one: ClassVar[bool] = False  # whether it always runs the tasks of a batch in turn

    path: str
    plain_class: type[nn.Module]
    home: Home
    bound: dict[str, Bound]
    private: tuple[str, ...]  # names of the plain layer's tensors that each task has for itself
    row_dim: int | None  # where its rows are, if not first
    acts: Acts  # which kinds of private tensors act where, on which weight
    has_base: bool

    SETTINGS: ClassVar[tuple[str, ...]] = (
        "path", "plain_class", "home", "bound", "private", "row_dim", "acts", "has_base",
    )  # fmt: skip

    # what a form declares

    @classmethod
    def layouts(cls, module: nn.Module, options: Options) -> dict[str, Layout]:
        """For each weight of the plain module that can be bound, where its inputs lie."""
        return {}

    @classmethod
    def statistics(cls, module: nn.Module) -> list[str]:
        """Names of buffers that the plain module changes as it learns."""
        return []

    def input_features(self, name: str) -> int:
        """How many numbers the mean of a bound weight's input has; 0 if it has no one input."""
        return 0

    def features_last(self, x: Tensor) -> Tensor:
        """The input as (rows, …, features)."""
        return x if x.ndim > 1 else x.unsqueeze(0)

    def is_linear_map(self, name: str) -> bool:
        """Whether the layer gives W x + b of its `inputs_of`, so that W can be solved for."""
        return False

    def inputs_of(self, name: str, plain: Any, inputs: Any, options: Any, seed: int) -> list[Met]:
        """What a call of the plain module multiplies a bound weight with.

        Of places of an image some are drawn, by the seed.
        """
        raise NotImplementedError

    def bound_inputs(self, name: str, own: LayerView, x: Tensor) -> Tensor:
        """C(k)·(x − μₖ) of x (groups, rows, features), which `inputs_of` tells."""
        bound, layout = self.bound[name].context, self.bound[name].layout
        places = x.unflatten(-1, (bound.dim, -1)).mT  # (groups, rows, places, inputs)
        mean = own.tensors.get(f"{name}_mu")
        if mean is not None:
            spread = layout.spread_mean(mean).view(bound.groups, 1, 1, -1)
            own = own._replace(tensors={**own.tensors, f"{name}_mu": spread})
        for kind, weight in self.acts.before:
            places = kind.before(own, name, places) if weight == name else places
        context, flat = own.contexts[name], places.flatten(1, 2)
        y = context.by_row().bind(flat) if bound.groups > 1 else context.bind(flat[0]).unsqueeze(0)
        return y.view(places.shape).mT.flatten(2)

    @property
    def called(self) -> str:
        """The module whose call shows these inputs: itself, if it is ever called."""
        return self.path

    def runs_by_task(self) -> bool:
        """Whether the rows of each task have to be computed together, as in a batch norm."""
        return self.one_by_one or (self.training and any(n in self._buffers for n in self.private))

    def may_run_by_task(self) -> bool:
        """Whether it could have to, or take note of inputs, in some mode."""
        statistics = any(name in self._buffers for name in self.private)
        norm = type(self).runs_by_task is not Layer.runs_by_task
        return self.one_by_one or statistics or norm or bool(self.acts.note)

    # a pass

    def own(self) -> tuple[LayerView, Tensor | None]:
        """Contexts and private tensors of the active task, or of each row's, and the rows."""
        view = active.view
        if view is not None and active.home is self.home and self.path in view.layers:
            return view.layers[self.path], view.rows
        view = outside(self.home, self.path)
        if view is None:
            raise no_task(self.path)
        return view.layers[self.path], None

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The plain layer's forward pass, on the tensors of the task."""
        own, rows = self.own()
        if rows is not None:
            by_row = self.by_task if self.runs_by_task() else self.by_row
            return by_row(own, rows, *inputs, **options)
        y = self._run(own, *inputs, **options)
        if self.training and self.acts.note:
            self.note(own, inputs[0] if inputs else next(iter(options.values())))
        return y

    def _run(self, own: LayerView, *inputs: Any, **options: Any) -> Any:
        """The plain layer's forward pass."""
        if not self.reads_once:
            return super().forward(*inputs, **options)
        views = self._layers_inside() | {self.path: self.read_once(own)}
        with viewing(View(views), self.home, active.again):
            return super().forward(*inputs, **options)

    def note(self, own: LayerView, x: Tensor, rows: Tensor | None = None) -> None:
        """Let kinds of private tensors take note of the input, each task of its own rows."""
        if active.again or not x.numel():
            return
        front = self.features_last(x)
        for kind, name in self.acts.note:
            if rows is None:
                kind.note(self, own, name, front)
                continue
            for slot, one in enumerate(own.each):
                index = (rows == slot).nonzero()[:, 0]
                kind.note(self, one, name, front.index_select(self.rows_in(front, rows), index))

    def by_row(self, own: LayerView, rows: Tensor, *inputs: Any, **options: Any) -> Any:
        """The pass of one row, mapped over the rows."""
        layers = self._layers_inside()
        if any(one.each for one in layers.values()):  # rows of a task belong together in there
            return self.by_task(own, rows, *inputs, **options)
        leaves, tree = tree_flatten((inputs, options))
        dims = self.rows_given(leaves, rows)
        home, dim = self.home, self.row_dim or 0
        own_tensors, views_of = in_a_list(layers)
        count = len(own_tensors)

        def alone(*row: Any) -> Any:
            some = zip(row[count:], dims, strict=True)
            inputs, options = tree_unflatten(
                [x if d is None else x.unsqueeze(d) for x, d in some], tree
            )
            views = views_of(row[:count])
            with viewing(View(views), home, active.again):
                y = self._run(views[self.path], *inputs, **options)
            return tree_map(lambda t: self._one_row(t, dim) if isinstance(t, Tensor) else t, y)

        mapped = torch.vmap(alone, (*[0] * count, *dims), dim, randomness="different")
        try:
            return mapped(*own_tensors, *leaves)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            first = str(error).splitlines()[0]
            raise self.not_direct(f"cannot be mapped over rows ({first})") from error

    def _one_row(self, y: Tensor, dim: int) -> Tensor:
        """What the plain layer returned for one row, without the dimension of the rows."""
        if y.ndim <= dim or y.shape[dim] != 1:
            raise self.not_direct(f"returns {tuple(y.shape)} for one row, which is not found in it")
        return y.squeeze(dim)

    def by_task(self, own: LayerView, rows: Tensor, *inputs: Any, **options: Any) -> Any:
        """The rows of each task together, put back where they were."""
        leaves, tree = tree_flatten((inputs, options))
        dims = self.rows_given(leaves, rows)
        if not own.each:
            raise SuperposeError(
                f"layer {self.path!r} computes the tasks of a batch one after the other, which one "
                "program for all of them cannot: export it with one task for the batch"
            )
        views, places, parts = self._layers_inside(), [], []
        for slot in range(len(own.each)):
            index = (rows == slot).nonzero()[:, 0]
            some = [
                x if d is None else x.index_select(d, index)
                for x, d in zip(leaves, dims, strict=True)
            ]
            inputs, options = tree_unflatten(some, tree)
            view = View({path: one.each[slot] for path, one in views.items()})
            with viewing(view, self.home, active.again):
                parts.append(tree_flatten(self.forward(*inputs, **options)))
            places.append(index)
        for (returned, _), index in zip(parts, places, strict=True):
            for y, d in zip(returned, self.rows_returned(returned), strict=True):
                if isinstance(y, Tensor) and (y.ndim <= d or y.shape[d] != len(index)):
                    raise self.not_direct(
                        f"returns {tuple(y.shape)} for {len(index)} rows, which are not found in it"
                    )
        order = torch.cat(places).argsort()
        columns = zip(*(found for found, _ in parts), strict=True)
        whole = [
            torch.cat(column, d).index_select(d, order)
            if isinstance(column[0], Tensor)
            else column[0]
            for d, column in zip(self.rows_returned(parts[0][0]), columns, strict=True)
        ]
        return tree_unflatten(whole, parts[0][1])

    def _layers_inside(self) -> dict[str, LayerView]:
        """The views of this layer and of those inside it."""
        of_pass = active.view if active.home is self.home else None
        view = outside(self.home, self.path) if of_pass is None else of_pass
        if view is None:
            raise no_task(self.path)
        own = [self.path]
        return {p: one for p, one in view.layers.items() if not self.path or inside(p, own)}

    # where the rows of a mixed batch are

    def rows_given(self, leaves: Sequence[Any], rows: Tensor) -> list[int | None]:
        """The dimension of the rows in each tensor that the layer is given."""
        return [self.rows_in(x, rows) if isinstance(x, Tensor) else None for x in leaves]

    def rows_returned(self, leaves: Sequence[Any]) -> list[int]:
        """The dimension of the rows in each tensor that it returns."""
        return [self.row_dim or 0 for _ in leaves]

    def rows_in(self, x: Tensor, rows: Tensor, features: int = 1) -> int:
        """The dimension of the rows, before the features: (rows, features) has them first."""
        dim = max(0, min(self.row_dim or 0, x.ndim - 1 - features))
        if x.ndim < 1 + features or x.shape[dim] != rows.shape[0]:
            raise self.not_direct(
                f"is given {tuple(x.shape)}, in which it cannot tell the {len(rows)} rows"
            )
        return dim

    def not_direct(self, why: str) -> SuperposeError:
        """The error of a direct batch that is none."""
        return SuperposeError(
            f"layer {self.path!r} {why}: this network's mixed batches are computed grouped, "
            "model.mixed = 'grouped'"
        )

    # its tensors

    def stored(self, name: str) -> Any:
        """The layer's own tensor: W of a bound weight, what tasks start from of a private one."""
        for kept in (self._parameters, self._buffers):
            if name in kept:
                return kept[name]
        return vars(self).get(name)

    def base(self, name: str) -> Tensor | None:
        """W₀."""
        bases = self._modules.get("bases")
        return None if bases is None else bases._parameters.get(name)

    def read(self, name: str, own: LayerView) -> Any:
        """W₀ + W·C(k) + Bₖ·Aₖ, or bₖ − W·C(k)·μₖ, or whatever the task has under this name."""
        if name in self.bound and name not in own.tensors:
            base = self.base(name)
            if name not in own.contexts:  # the task has not begun, and is its base
                return base
            change = self.bound_weight(own, name)
            return change if base is None else full(base) + change
        tensor = own.tensors[name] if name in own.tensors else self.stored(name)
        if name == "bias" and own.contexts:
            for kind, weight in self.acts.bias:
                tensor = kind.bias(self, own, weight, tensor)
        return tensor

    def read_once(self, own: LayerView) -> LayerView:
        """A view that has all of the layer's tensors, for a pass that reads them several times."""
        names = (*self.bound, *self.private, *(["bias"] if self.acts.bias else []))
        return LayerView({}, {name: self.read(name, own) for name in names})

    def bound_weight(self, own: LayerView, name: str) -> Tensor:
        """W·C(k) + Bₖ·Aₖ, in the shape of W."""
        bound, context = self.bound[name], own.contexts[name]
        matrix = bound.layout.to_matrix(full(self.stored(name)))
        matrix = (context.by_row() if bound.grouped else context).bind_weight(matrix)
        for kind, weight in self.acts.matrix:
            if weight == name:
                matrix = kind.matrix(own, name, matrix)
        return opened(bound.layout.from_matrix(matrix), own.gate)

    def response(self, own: LayerView, name: str, mean: Tensor) -> Tensor:
        """W·C(k)·μ."""
        (bound, layout), context = self.bound[name], own.contexts[name]
        matrix, x = layout.to_matrix(full(self.stored(name))), layout.spread_mean(mean)
        if bound.groups == 1:
            y = context.bind(x) @ matrix.mT
        else:
            y = (context.by_row().bind(x.unsqueeze(-2)) @ matrix.mT).flatten(-3)
        return opened(layout.sum_response(y), own.gate)

    def __setattr__(self, name: str, value: Any) -> None:
        """A module that sets a tensor of the task anew, not in place, writes to the task's."""
        if isinstance(value, nn.Parameter) and name in self._parameters:
            self._parameters[name] = value  # as shards do in a pass: without reading the old one
            return
        private = self.__dict__.get("private", ())
        if name not in private or not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            super().__setattr__(name, value)
            return
        own = view_of(self)
        if own is None:
            super().__setattr__(name, value)  # the start of all tasks, which `train()` refuses
        elif active.view is not None and active.view.rows is not None:
            raise self.not_direct(f"sets {name!r}, which each task has for itself")
        else:
            own.tensors[name].detach().copy_(value.detach())

    def unsuperpose(self) -> None:
        """Become the plain layer again."""
        self._modules.pop("bases", None)
        plain = self.plain_class
        for name in self.SETTINGS:
            self.__dict__.pop(name, None)
        self.__class__ = plain  # type: ignore[assignment]


class Met(NamedTuple):
    """Some outputs of a bound weight, and the inputs (groups, rows, features) they multiply."""

    outputs: slice
    x: Tensor


def opened(change: Tensor, gates: tuple[Tensor, ...]) -> Tensor:
    """What W gives to the rows that it is open to; zero to the others."""
    for gate in gates:
        one = gate.view(gate.shape + (1,) * (change.ndim - gate.ndim))
        change = torch.where(one, change, torch.zeros((), dtype=change.dtype, device=change.device))
    return change
