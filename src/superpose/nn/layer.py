"""What every superposed layer shares: its contexts, its private tensors, and rows of many tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose import contexts, functional
from superpose.contexts import Context, Family, LayerContext
from superpose.contexts.base import Drawn
from superpose.errors import SuperposeError
from superpose.nn import additions
from superpose.nn.additions import CONTEXT, DOWN, INPUT_SHAPES, MEAN, SEEN, UP, added_to
from superpose.nn.names import joined
from superpose.nn.pairing import Pairing
from superpose.nn.private import STATE, Part, PrivateState, by_row
from superpose.nn.quantised import full
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
from superpose.nn.statistics import Statistics, Usual

TASK, ROWS = "task", "rows"  # what is centred: a task's inputs, or each row of them


def holder(layer: nn.Module, name: str) -> dict[str, Any] | None:
    """Where a layer keeps a tensor: with its parameters, or, in a replica, as an attribute."""
    if name in layer._parameters:
        return layer._parameters
    return vars(layer) if name in vars(layer) else None


class Binding(NamedTuple):
    """How the weights of a layer are bound: the options of `superpose` that its product needs."""

    base: bool = False
    frozen: tuple[str, ...] = ()  # weights that stay as they are, by their names in the network
    centre: str | None = None


class Layer(nn.Module):
    """A mixin: a plain layer that looks up its context and private tensors for the active task.

    `contexts` has an entry for each weight that is bound, `private` one for each tensor that every
    task has for itself. `bases` may have what all tasks have in common of a bound weight, which is
    W₀ + W C(k) then, and `guides` a matrix that its gradient is multiplied by. `centre` says
    whether the mean is taken out of what is bound, and `rank` how many directions each task has for
    itself. `batch_dim` is where the rows of a batch are, first unless it is said. With a `pairing`,
    a bound weight is that of another layer for each task.

    A class says of its layers whether they have weights to bind, whether what they give is linear
    in what they are given (so that packing can solve for them, and projection guide them), whether
    their weights may be complex, whether the mean of their inputs is a shift of their bias (so that
    a task's own can be taken out), and what `convert` sets on them.
    """

    binds_weights: ClassVar[bool] = True
    is_linear_map: ClassVar[bool] = False
    has_complex_form: ClassVar[bool] = False
    has_input_mean: ClassVar[bool] = False
    conversion_settings: ClassVar[tuple[str, ...]] = ()

    path: str
    plain_class: type[nn.Module]
    contexts: dict[str, LayerContext]
    private: dict[str, Part]
    bases: dict[str, Tensor] | nn.ParameterDict
    guides: dict[str, Tensor]
    centre: str | None
    rank: int
    input_statistics: Statistics | None  # that each task keeps of its inputs
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
        return {name: full(base) + full(self.stored(name)) for name, base in self.bases.items()}

    def plain_tensors(self, selected: Selected) -> dict[str, Tensor]:
        """The same for what is selected."""
        own = [name for name in selected.private if added_to(self, name) is None]
        names = dict.fromkeys((*own, *selected.contexts, *(["bias"] if selected.means else [])))
        return {name: self.plain_tensor(selected, name) for name in names}

    def plain_tensor(self, selected: Selected, name: str) -> Tensor:
        """One of them: W₀ + W C(k) + B A, or b − W C(k) μ if the input is centred."""
        if name in selected.contexts:
            return self.bound_weight(selected, name)
        own = selected.private[name] if name in selected.private else self.stored(name)
        return own if name != "bias" else self.shifted(selected, own)

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

    def bound_weight(self, selected: Selected, name: str, rows: int | None = None) -> Tensor:
        """W₀ + W C(k) + B A, as far as it has them; with rows, one for each, (rows, *W.shape)."""
        own = self.from_matrix(name, self.bound_matrix(selected, name, rows))
        base = self.bases.get(name)
        return own if base is None else full(base) + own

    def bound_matrix(self, selected: Selected, name: str, rows: int | None = None) -> Tensor:
        """W C(k) + B A as `to_matrix` has it."""
        matrix = opened(self.bind_weight(selected, name, rows), selected.closed)
        low_rank = selected.low_rank(name)
        return matrix if low_rank is None else matrix + low_rank[1] @ low_rank[0]

    def bind_weight(self, selected: Selected, name: str, rows: int | None = None) -> Tensor:
        """W C(k), less the mean of each of its rows if it is the rows that are centred."""
        weight = full(selected.private.get(name, self.stored(name)))
        matrix, context = self.to_matrix(name, weight), selected.contexts[name]
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
        return bound - bound.mean(-1, keepdim=True) if self.centre == ROWS else bound

    def shifted(self, selected: Selected, bias: Tensor | None, rows: int | None = None) -> Any:
        """b − W C(k) μ: the bias of a layer whose input is not centred, and gives the same."""
        if "weight" not in selected.means:
            return bias
        response = opened(self.mean_response(selected, "weight", rows), selected.closed)
        return -response if bias is None else bias - response.to(bias.dtype)

    def mean_response(self, selected: Selected, name: str, rows: int | None) -> Tensor:
        """W C(k) μ (outputs,), or of each row's task (rows, outputs)."""
        mean, context = self.mean_inputs(selected.means[name]), selected.contexts[name]
        matrix = self.to_matrix(name, full(self.stored(name)))
        if self.contexts[name].groups == 1:
            return self.summed(context.bind(mean) @ matrix.mT)
        if rows is not None:  # each group of each row
            context = context.map(lambda tensor: tensor.flatten(0, 1))
        each = mean.reshape(-1, 1, mean.shape[-1])
        bound = context.by_row().bind(each).view(*mean.shape[:-1], 1, -1)
        return self.summed((bound @ matrix.mT).flatten(-3))

    def superpose(
        self,
        plain_class: type[nn.Module],
        path: str,
        family: Family | None,
        seed: int,
        batch_dim: int | None = None,
        binding: Binding = Binding(),  # noqa: B008 (it cannot be changed)
    ) -> None:
        """Give the layer its name in the network and, if a family is given, its contexts.

        With a base, which is the plain weight, what is bound is the change from it: nothing yet.
        """
        self.plain_class = plain_class
        self.path = path
        self.batch_dim = batch_dim
        self.contexts = {}
        self.private = {}
        self.bases = {}
        self.guides = {}
        self.pairing = None
        self.centre = binding.centre if binding.centre == ROWS else None
        self.rank = 0
        self.input_statistics = None
        if family is None:
            return
        for name, (dim, groups) in self.bound().items():
            if joined(path, name) in binding.frozen:
                continue
            key = joined(path, f"change.{name}" if binding.base else name)
            self.contexts[name] = LayerContext(family, seed, key, dim, groups)
            if isinstance(family, Drawn) and family.learnable:
                self.add(name, CONTEXT)
        if binding.base and self.contexts:
            self._keep_base()

    def _keep_base(self) -> None:
        """The weights stay where they are as a base; the change from them starts at zero."""
        own = {name: self.stored(name) for name in self.contexts}
        for name, weight in own.items():
            zeros = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
            setattr(self, name, nn.Parameter(zeros))
        self.bases = nn.ParameterDict(own)

    def add(self, weight: str, *endings: str) -> None:
        """Give each task additions to a weight, whose names the plain layer must not have."""
        names = [weight + ending for ending in endings]
        taken = next((name for name in names if hasattr(self, name)), None)
        if taken is not None:
            raise SuperposeError(
                f"{self.plain_class.__name__} {self.path!r} already has {taken!r}, which each task "
                f"is to have beside {weight!r}: rename it, or name the layer in skip"
            )
        self.make_private(names)

    def add_rank(self, rank: int) -> None:
        """Give each task a low-rank part of each weight, where that is less than the weight."""
        self.rank = rank
        for name in self.contexts:
            *_, outputs, inputs = self.to_matrix(name, self.stored(name)).shape
            if rank * (outputs + inputs) < outputs * inputs:
                self.add(name, DOWN, UP)

    def add_mean(self) -> None:
        """Take each task's own mean out of the input, which is a shift of the bias."""
        if self.has_input_mean and "weight" in self.contexts:
            self.centre = TASK
            self.add("weight", MEAN, SEEN)

    def add_statistics(self, wanted: Statistics) -> list[Part]:
        """Let each task keep statistics of this layer's inputs, to be recognised by."""
        self.input_statistics = wanted
        names = ["weight" + ending for ending in INPUT_SHAPES]
        self.make_private(names)
        return [self.private[name] for name in names]

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
            if added_to(self, name) is None:
                getattr(self, name).requires_grad_(part.trained)
        plain = self.plain_class
        own = "path plain_class contexts private bases guides centre rank batch_dim pairing"
        own += " input_statistics"
        for name in (*own.split(), *self.conversion_settings):
            delattr(self, name)
        self._modules.pop(STATE, None)
        self.__class__ = plain  # type: ignore[assignment]

    def template(self, name: str) -> Tensor:
        """What a task starts from: the layer's own tensor, or that of an addition."""
        added = added_to(self, name)
        if added is not None:
            return additions.start(self, *added)
        return full(self.stored(name))

    def drawn_numbers(self, name: str, task: int) -> Tensor | None:
        """What a learned context started from, by the name of its change; None for other names."""
        if not name.endswith(CONTEXT):
            return None
        weight = name.removesuffix(CONTEXT)
        return self.contexts[weight].numbers(task).to(self.real_like(weight))

    def select(
        self, tasks: Tasks, own: dict[str, Tensor], closed: Tensor | None = None
    ) -> Selected:
        """The contexts of these tasks, their private tensors, and bound weights kept elsewhere."""
        changes = {name + CONTEXT for name in self.contexts}
        learned = {
            name: unmoved(own[name + CONTEXT], closed)
            for name in self.contexts
            if name + CONTEXT in own
        }
        contexts = {name: self._context(name, learned.get(name), tasks) for name in self.contexts}
        private = {n: tensor for n, tensor in own.items() if n not in changes}
        # a running mean goes on while the pass, and its gradient, have the old
        means = {n: own[n + MEAN].clone() for n in self.contexts if n + MEAN in own}
        if self.pairing is not None:
            for name in self.contexts:
                weights = [full(self.slot(task).stored(name)) for task in tasks.unique]
                private[name] = by_row(weights, tasks.row)
        return Selected(contexts, private, means)

    def _context(self, name: str, change: Tensor | None, tasks: Tasks) -> Context:
        """C(k), of the numbers that were drawn for it, or of those and what was learned."""
        layer, like = self.contexts[name], self.real_like(name)
        if change is not None:
            drawn = layer.drawn(tasks.unique, tasks.row, like.device, like.dtype)
            return layer.make(drawn + change)
        if tasks.row is None:
            return layer.fixed(tasks.unique[0], like.device, like.dtype)
        return layer.fixed_by_row(tasks.unique, tasks.row, like.device, like.dtype)

    def weight_like(self) -> Tensor | None:
        """The first bound weight, for its type and device."""
        return next((self.real_like(name) for name in self.contexts), None)

    def real_like(self, name: str) -> Tensor:
        """A bound weight, or its real part."""
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
        """(W₀ + W C(k) + B A) x, each row by its own; all of the outputs, or some."""
        weight = self.to_matrix(name, selected.private.get(name, self.stored(name)))
        context, base = selected.contexts.get(name), self.bases.get(name)

        def some(matrix: Tensor) -> Tensor:
            return matrix if outputs is None else full(matrix)[..., outputs, :]

        if context is None:
            return self.multiply(x, some(weight), rows)
        bound = self.bind(context, self.centred(selected, name, x, rows), rows)
        closed = selected.closed
        if closed is None:
            y = self.multiply(bound, some(weight), rows, self.guides.get(name))
        else:
            each = self.spread(closed.unsqueeze(-1), bound, rows)
            y = self.multiply(unmoved(bound, each), some(weight), rows, self.guides.get(name))
            y = y - self.spread(closed.unsqueeze(-1), y, rows).to(y.dtype) * y.detach()
        low_rank = selected.low_rank(name)
        if low_rank is not None:
            down, up = low_rank
            y = y + self.multiply(self.multiply(x, down, rows), some(up), rows)
        return y if base is None else y + F.linear(x, some(self.base_matrix(name)))

    def base_matrix(self, name: str) -> Tensor:
        """W₀ for a product; in full in training, as a quantised one may round x: no gradient."""
        base = self.bases[name]
        return self.to_matrix(name, full(base) if self.training else base)

    def centred(self, selected: Selected, name: str, x: Tensor, rows: int | None = None) -> Tensor:
        """x less the task's mean of it, or less the mean of each of its rows; x (…, M)."""
        if self.centre == ROWS:
            return x - x.mean(-1, keepdim=True)
        mean = selected.means.get(name)
        if mean is None:
            return x
        return x - (mean if rows is None else self.spread(mean, x, rows)).to(x.dtype)

    def centred_inputs(self, selected: Selected, name: str, x: Tensor) -> Tensor:
        """The same for x (groups, rows, inputs), as the rows of `to_matrix` meet it."""
        if self.centre == ROWS or name not in selected.means:
            return self.centred(selected, name, x)
        mean = self.mean_inputs(selected.means[name])
        return x - (mean if self.contexts[name].groups == 1 else mean.unsqueeze(1)).to(x.dtype)

    def observe(self, selected: Selected, inputs: Tensor, rows: int | None) -> None:
        """Take a batch, (…, M), into what its task keeps of the inputs, in training."""
        if not self.training or (self.centre != TASK and self.input_statistics is None):
            return
        if rows is not None:
            raise NotDirect(self.path, "keeps the mean of each task, which learns one at a time")
        option = "centre='task'" if self.centre == TASK else "recognise"
        compiling = torch.compiler.is_compiling()
        if not compiling and torch._C._functorch.is_batchedtensor(inputs):
            raise SuperposeError(
                f"layer {self.path!r} keeps a running mean of its inputs ({option}), which "
                f"torch.vmap cannot change: call model.eval() first, or leave {option} out"
            )
        if active.again or not inputs.numel():
            return
        kept = self.input_statistics
        if kept is not None and "weight_input_rows" in selected.private:  # not so in a mere trial
            own = Usual(*(selected.private["weight" + ending] for ending in INPUT_SHAPES))
            own.update(self.by_rows(inputs.detach()), kept.forget, kept.most)
        if self.centre != TASK:
            return
        mean, seen = (selected.private["weight" + ending] for ending in (MEAN, SEEN))
        with torch.no_grad():
            seen += 1
            share = seen.reciprocal().clamp_min(additions.MOMENTUM)
            mean.lerp_(inputs.detach().flatten(0, -2).mean(0).to(mean.dtype), share)

    def features_last(self, x: Tensor) -> Tensor:
        """What the layer is given, as (rows, …, M)."""
        return x if x.ndim > 1 else x.unsqueeze(0)

    def by_rows(self, inputs: Tensor) -> Tensor:
        """A vector (M,) for each row, of inputs (rows, …, M): the mean of all of its places."""
        dim = 0 if inputs.ndim < 3 else self.row_dim
        front = inputs.real if inputs.is_complex() else inputs
        return front.movedim(dim, 0).flatten(1, -2).mean(1) if inputs.ndim > 2 else front

    def input_features(self, name: str) -> int:
        """How many numbers the mean of a weight's inputs has."""
        return self.contexts[name].dim

    def mean_inputs(self, mean: Tensor) -> Tensor:
        """The mean, as an input that is bound; groups apart if there are several."""
        return mean

    def summed(self, response: Tensor) -> Tensor:
        """Outputs of what `to_matrix` gives, as those of the layer."""
        return response

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


def opened(own: Tensor, closed: Tensor | None) -> Tensor:
    """What W gives a task; zero if it is closed to it, with the gradient that it would have.

    A task with a base is closed until it has learned something. `closed` is 1 or 0, for all of
    `own` or for each of its rows, (rows, …).
    """
    return own if closed is None else own - _each(closed, own) * own.detach()


def unmoved(x: Tensor, closed: Tensor | None) -> Tensor:
    """The same x, through which W has no say in the gradient of what came before, if closed."""
    if closed is None:
        return x
    each = _each(closed, x)
    return x * (1 - each) + x.detach() * each


def _each(closed: Tensor, x: Tensor) -> Tensor:
    """The gate, ready for x or for each of its rows."""
    return closed.view(closed.shape + (1,) * (x.ndim - closed.ndim)).to(x.dtype)


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
