"""What every superposed layer shares: its contexts, its private tensors, and rows of many tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose import contexts, functional
from superpose.contexts import Context, Family, LayerContext
from superpose.contexts.base import Drawn
from superpose.errors import SuperposeError
from superpose.nn.names import joined
from superpose.nn.pairing import Pairing
from superpose.nn.private import STATE, Part, PrivateState, by_row
from superpose.nn.selection import (
    NotDirect,
    Selected,
    Selection,
    TaskIds,
    Tasks,
    active,
    outside,
    rows_are_tokens,
    whole_numbers,
)

CONTEXT = "_context"  # a weight's name and this: the learned numbers of its context


def holder(layer: nn.Module, name: str) -> dict[str, Any] | None:
    """Where a layer keeps a tensor: with its parameters, or, in a replica, as an attribute."""
    if name in layer._parameters:
        return layer._parameters
    return vars(layer) if name in vars(layer) else None


class Layer(nn.Module):
    """A mixin: a plain layer that looks up its context and private tensors for the active task.

    `contexts` has an entry for each weight that is bound, `private` one for each tensor that every
    task has for itself. `bases` may have what all tasks have in common of a bound weight, which is
    W₀ + W C(k) then, and `guides` a matrix that its gradient is multiplied by. `batch_dim` is where
    the rows of a batch are, first unless it is said. With a `pairing`, a bound weight is that of
    another layer for each task.

    A class says of its layers whether they have weights to bind, whether what they give is linear
    in what they are given (so that packing can solve for them, and projection guide them), whether
    their weights may be complex, and what `convert` sets on them.
    """

    binds_weights: ClassVar[bool] = True
    is_linear_map: ClassVar[bool] = False
    has_complex_form: ClassVar[bool] = False
    conversion_settings: ClassVar[tuple[str, ...]] = ()

    path: str
    plain_class: type[nn.Module]
    contexts: dict[str, LayerContext]
    private: dict[str, Part]
    bases: dict[str, Tensor] | nn.ParameterDict
    guides: dict[str, Tensor]
    batch_dim: int | None
    pairing: Pairing | None
    private_state: PrivateState  # of the whole model, in its last layer

    def __init__(self, *arguments: Any, **options: Any) -> None:
        name = type(self).__name__
        raise SuperposeError(
            f"{name} has tensors for each task, which only a superposed model knows: superpose() a "
            f"network that has an nn.{name} in it"
        )

    def bound(self) -> dict[str, tuple[int, int]]:
        """For each weight that can be bound: its number of inputs, and of groups."""
        raise NotImplementedError

    def to_matrix(self, name: str, weight: Tensor) -> Tensor:
        """A bound weight as (outputs, inputs), or (groups, outputs, inputs) if there are groups."""
        raise NotImplementedError

    def from_matrix(self, name: str, matrix: Tensor) -> Tensor:
        """The inverse of `to_matrix`."""
        raise NotImplementedError

    def read_out(self, task: int) -> dict[str, Tensor]:
        """What a plain layer needs to do what this one does for a task: W C(k), private tensors."""
        own = {name: part.of(task) for name, part in self.private.items()}
        return self.plain_tensors(self.select(Tasks([task], None), own))

    def in_all(self) -> dict[str, Tensor]:
        """The weights that have a base, as they stand: W₀ + W."""
        return {name: base + self.stored(name) for name, base in self.bases.items()}

    def plain_tensors(self, selected: Selected) -> dict[str, Tensor]:
        """The same for what is selected."""
        names = {**selected.private, **selected.contexts}
        return {name: self.plain_tensor(selected, name) for name in names}

    def plain_tensor(self, selected: Selected, name: str) -> Tensor:
        """One of them."""
        own = selected.private[name] if name in selected.private else self.stored(name)
        context = selected.contexts.get(name)
        return own if context is None else self.bind_weight(name, context, own)

    def plain_with(self, tensors: dict[str, Tensor]) -> Any:
        """A plain layer that shares everything with this one but these tensors."""
        plain = self.plain_class.__new__(self.plain_class)
        vars(plain).update(vars(self) | tensors)
        return plain

    def plain_forward(self, selected: Selected, *inputs: Any, **options: Any) -> Any:
        """What the plain layer does, on the tensors of one task."""
        plain = self.plain_with(self.plain_tensors(selected))
        return self.plain_class.forward(plain, *inputs, **options)

    def stored(self, name: str) -> Any:
        """The layer's own tensor, as it stands: not what the active task has of it."""
        own = holder(self, name)
        return getattr(self, name) if own is None else own[name]  # computed by a parametrization

    def slot(self, task: int) -> Layer:
        """The layer in whose weight this one's is kept for a task: itself without a pairing."""
        return self if self.pairing is None else self.pairing.slot(self, task)

    def grouped(self, name: str, context: Context) -> Context:
        """The context, ready for a bound weight as `to_matrix` gives it."""
        return context if self.contexts[name].groups == 1 else context.by_row()

    def bind_weight(
        self, name: str, context: Context, weight: Tensor, rows: int | None = None
    ) -> Tensor:
        """W₀ + W C(k), or W C(k) without a base; with rows, a weight for each, (rows, *W.shape)."""
        matrix, base = self.to_matrix(name, weight), self.bases.get(name)
        if rows is None:
            bound = self.grouped(name, context).bind_weight(matrix)
        else:
            if weight.ndim == self.stored(name).ndim:
                matrix = matrix.expand(rows, *matrix.shape)
            if self.contexts[name].groups > 1:  # each group of each row
                repeated = matrix.flatten(0, 1)
                context = context.map(lambda tensor: tensor.flatten(0, 1))
            else:
                repeated = matrix.flatten(1, -2)
            bound = context.by_row().bind_weight(repeated).view(matrix.shape)
        own = self.from_matrix(name, bound)
        return own if base is None else base + own

    def superpose(
        self,
        plain_class: type[nn.Module],
        path: str,
        family: Family | None,
        seed: int,
        batch_dim: int | None = None,
        base: bool = False,
    ) -> None:
        """Give the layer its name in the network and, if a family is given, its contexts.

        With a base, what is bound is the change from it; as a start, both are the plain weight.
        """
        self.plain_class = plain_class
        self.path = path
        self.batch_dim = batch_dim
        self.contexts = {}
        self.private = {}
        self.bases = {}
        self.guides = {}
        self.pairing = None
        if family is None:
            return
        for name, (dim, groups) in self.bound().items():
            key = joined(path, f"change.{name}" if base else name)
            self.contexts[name] = LayerContext(family, seed, key, dim, groups)
            if isinstance(family, Drawn) and family.learnable:
                self.make_private([name + CONTEXT])
        if base and self.contexts:
            own = {name: self.stored(name).detach().clone() for name in self.contexts}
            self.bases = nn.ParameterDict({n: nn.Parameter(w, False) for n, w in own.items()})

    def unbound(self) -> list[str]:
        """What no context binds: biases, scales, statistics."""
        own = [name for name, _ in self.named_parameters(recurse=False)]
        return [name for name in (*own, *self.running_statistics()) if name not in self.contexts]

    def running_statistics(self) -> list[str]:
        """Buffers that it changes as it learns; those of most layers are constants."""
        return []

    def make_private(self, names: Iterable[str]) -> None:
        """Let each task have its own of these tensors."""
        self.private |= {name: Part.like(self, name) for name in names}

    def unsuperpose(self) -> None:
        """Become the plain layer again."""
        for name, part in self.private.items():
            if not name.endswith(CONTEXT):
                getattr(self, name).requires_grad_(part.trained)
        plain = self.plain_class
        own = "path plain_class contexts private bases guides batch_dim pairing"
        for name in (*own.split(), *self.conversion_settings):
            delattr(self, name)
        self._modules.pop(STATE, None)
        self.__class__ = plain  # type: ignore[assignment]

    def template(self, name: str) -> Tensor:
        """What a task starts from: the layer's own tensor, or no change of a derived context."""
        if not name.endswith(CONTEXT):
            own: Tensor = self.stored(name)
            return own
        weight = name.removesuffix(CONTEXT)
        shape = self.contexts[weight].numbers(0).shape
        return nn.Parameter(torch.zeros(shape).to(self._real_like(weight)))

    def drawn_numbers(self, name: str, task: int) -> Tensor | None:
        """What a learned context started from, by the name of its change; None for other names."""
        if not name.endswith(CONTEXT):
            return None
        weight = name.removesuffix(CONTEXT)
        return self.contexts[weight].numbers(task).to(self._real_like(weight))

    def select(self, tasks: Tasks, own: dict[str, Tensor]) -> Selected:
        """The contexts of these tasks, their private tensors, and bound weights kept elsewhere."""
        contexts = {n: self._context(n, own.get(n + CONTEXT), tasks) for n in self.contexts}
        private = {n: tensor for n, tensor in own.items() if not n.endswith(CONTEXT)}
        if self.pairing is not None:
            for name in self.contexts:
                weights = [self.slot(task).stored(name) for task in tasks.unique]
                private[name] = by_row(weights, tasks.row)
        return Selected(contexts, private)

    def _context(self, name: str, change: Tensor | None, tasks: Tasks) -> Context:
        """C(k), of the numbers that were drawn for it, or of those and what was learned."""
        layer, like = self.contexts[name], self._real_like(name)
        if change is not None:
            drawn = layer.drawn(tasks.unique, tasks.row, like.device, like.dtype)
            return layer.make(drawn + change)
        if tasks.row is None:
            return layer.fixed(tasks.unique[0], like.device, like.dtype)
        return layer.fixed_by_row(tasks.unique, tasks.row, like.device, like.dtype)

    def weight_like(self) -> Tensor | None:
        """The first bound weight, for its type and device."""
        return next((self._real_like(name) for name in self.contexts), None)

    def _real_like(self, name: str) -> Tensor:
        weight: Tensor = self.stored(name)
        return weight.real if weight.is_complex() else weight

    def selected(self, task: TaskIds | None = None) -> tuple[Selected, int | None]:
        """What this layer uses now, and the number of rows if each has a task of its own.

        Inside a superposed model that is decided by the model; a layer used by itself is told.
        """
        if task is not None:
            weight = self.weight_like()
            assert weight is not None
            tasks = Tasks.of(whole_numbers(task), weight.device)
            return self.select(tasks, {}), None if tasks.row is None else len(tasks.row)
        selection: Selection | None = active.selection
        alone = outside.get()(self) if selection is None else None
        if alone is not None:
            return alone, None
        if selection is None or self.path not in selection.layers:
            raise SuperposeError(
                f"no task is active for layer {self.path!r}: call model(x, task=…), or wrap the "
                "call in `with model.task(…):`, with one task where a part of the model is called "
                "by itself; torch.utils.checkpoint takes use_reentrant=False and "
                "context_fn=superpose.same_task"
            )
        return selection.layers[self.path], selection.rows

    def bind(self, context: Context, x: Tensor, rows: int) -> Tensor:
        """C x for x of shape (…, M), each row by its own context."""
        dim = self.rows_at(x, rows)
        if x.ndim == 2:  # stacked contexts take it as it is
            return context.bind(x)
        if x.ndim == 3 and dim == 0:
            return context.by_row().bind(x)
        front = x.movedim(dim, 0)
        flat = front.reshape(rows, -1, x.shape[-1])
        return context.by_row().bind(flat).reshape(front.shape).movedim(0, dim)

    def product(
        self, selected: Selected, name: str, x: Tensor, rows: int, outputs: slice | None = None
    ) -> Tensor:
        """(W₀ + W C(k)) x, each row by its own context; all of the outputs, or some."""
        weight = self.to_matrix(name, selected.private.get(name, self.stored(name)))
        context, base = selected.contexts.get(name), self.bases.get(name)
        own = weight if outputs is None else weight[..., outputs, :]
        bound = x if context is None else self.bind(context, x, rows)
        y = self.multiply(bound, own, rows, self.guides.get(name))
        if base is None:
            return y
        common = self.to_matrix(name, base)
        return y + F.linear(x, common if outputs is None else common[outputs])

    def multiply(self, x: Tensor, weight: Tensor, rows: int, guide: Tensor | None = None) -> Tensor:
        """W x with one weight for all rows, or a private one for each (rows, outputs, inputs)."""
        if weight.ndim == 2:
            return functional.linear(x, weight, guide=guide)
        dim = self.rows_at(x, rows)
        front = x.movedim(dim, 0)
        y = front.reshape(rows, -1, x.shape[-1]) @ weight.mT
        return y.reshape(*front.shape[:-1], -1).movedim(0, dim)

    def add_bias(self, y: Tensor, bias: Tensor | None, rows: int) -> Tensor:
        """Add to a new y of shape (…, N), in place, a bias (N,), or (rows, N) if it is private."""
        if bias is None:
            return y
        own = self.spread(bias, y, rows) if bias.ndim > 1 else bias
        return y.add_(own.to(y.dtype))

    def spread(self, tensor: Tensor, x: Tensor, rows: int) -> Tensor:
        """(rows, *N) viewed so that it broadcasts against x of shape (…, *N)."""
        tail = tensor.shape[1:]
        between = [1] * (x.ndim - 1 - len(tail))
        return tensor.view(rows, *between, *tail).movedim(0, self.rows_at(x, rows, len(tail)))

    def check_rows(self, x: Tensor, rows: int, dims: int | None = None) -> None:
        """Rows come first in layers of channels; a batch has `dims` dimensions, or two and more."""
        batch = x.ndim >= 2 if dims is None else x.ndim == dims
        if not batch or x.shape[0] != rows:
            raise NotDirect(self.path, f"is given {tuple(x.shape)} in a batch of {rows} rows")

    @property
    def row_dim(self) -> int:
        """Where the rows are in this pass: second if they are tokens, else at `batch_dim`."""
        return 1 if rows_are_tokens() else self.batch_dim or 0

    def rows_at(self, x: Tensor, rows: int, features: int = 1) -> int:
        """The dimension of x that holds the rows, before features.

        So a batch (rows, features) has them first, even if they are second elsewhere.
        """
        dim = max(0, min(self.row_dim, x.ndim - 1 - features))
        if x.ndim < 2 or x.shape[dim] != rows:
            raise NotDirect(self.path, f"is given {tuple(x.shape)} in a batch of {rows} rows")
        return dim


class MatrixLayout(Layer):
    """Weights that are kept as (outputs, inputs)."""

    def to_matrix(self, name: str, weight: Tensor) -> Tensor:
        """The weight itself."""
        return weight

    def from_matrix(self, name: str, matrix: Tensor) -> Tensor:
        """The matrix itself."""
        return matrix


def derived(family: str | Family) -> Family:
    """The family of a layer used by itself, which knows no tasks to learn a context for."""
    chosen = contexts.family(family)
    if isinstance(chosen, Drawn) and chosen.learnable:
        raise SuperposeError(
            f"{type(chosen).__name__}(learnable=True) is learned for each task, which only a "
            "superposed model knows: superpose() a network, or leave learnable out"
        )
    return chosen


def standalone(plain: type[nn.Module], **defaults: Any) -> Any:
    """The constructor of a layer used by itself: the plain layer's arguments, then its key's.

    `family` (a name or a family), `seed` and `layer` (its name) decide its contexts.
    """

    def __init__(  # noqa: N807 (it becomes the method of that name)
        self: Any,
        *arguments: Any,
        family: str | Family = "binary",
        seed: int = 0,
        layer: str = plain.__name__,
        **options: Any,
    ) -> None:
        own = {name: options.pop(name, default) for name, default in defaults.items()}
        plain.__init__(self, *arguments, **options)
        vars(self).update(own)
        self.superpose(plain, layer, derived(family), seed)

    return __init__
