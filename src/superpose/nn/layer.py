"""What every superposed layer shares: its contexts, its private tensors, and their choice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from superpose.contexts import Family, LayerContext
from superpose.contexts.base import Drawn
from superpose.errors import SuperposeError
from superpose.nn import additions, reading, rows
from superpose.nn.additions import CONTEXT, MEAN, added_to
from superpose.nn.binding import context_of
from superpose.nn.centring import ROWS
from superpose.nn.flat import Part
from superpose.nn.gate import unmoved
from superpose.nn.names import joined
from superpose.nn.pairing import Pairing
from superpose.nn.private import STATE, PrivateState
from superpose.nn.quantised import full, is_quantised
from superpose.nn.recomputing import current
from superpose.nn.selection import (
    Selected,
    Selection,
    TaskIds,
    Tasks,
    by_row,
    outside,
    whole_numbers,
)
from superpose.nn.statistics import Statistics


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

    # the plain layer of a task
    read_out = reading.read_out
    plain_tensors = reading.plain_tensors
    plain_tensor = reading.plain_tensor
    plain_with = reading.plain_with
    plain_forward = reading.plain_forward
    # rows of many tasks
    product = rows.product
    add_bias = rows.add_bias
    spread = rows.spread
    check_rows = rows.check_rows

    def __init__(self, *arguments: Any, **options: Any) -> None:
        name = type(self).__name__
        raise SuperposeError(
            f"{name} has tensors for each task, which only a superposed model knows: superpose() a "
            f"network that has an nn.{name} in it"
        )

    # what a class declares

    def bound(self) -> dict[str, tuple[int, int]]:
        """For each weight that can be bound: its number of inputs, and of groups."""
        raise NotImplementedError

    def to_matrix(self, name: str, weight: Tensor) -> Tensor:
        """A bound weight as (outputs, inputs), or (groups, outputs, inputs) if there are groups."""
        raise NotImplementedError

    def from_matrix(self, name: str, matrix: Tensor) -> Tensor:
        """The inverse of `to_matrix`."""
        raise NotImplementedError

    def dims_of_inputs(self, name: str) -> tuple[int, ...]:
        """The dimensions of a bound weight that belong to one output: all but the first."""
        return tuple(range(1, self.stored(name).ndim))

    def running_statistics(self) -> list[str]:
        """Buffers that it changes as it learns; those of most layers are constants."""
        return []

    def features_last(self, x: Tensor) -> Tensor:
        """What the layer is given, as (rows, …, M)."""
        return x if x.ndim > 1 else x.unsqueeze(0)

    def input_features(self, name: str) -> int:
        """How many numbers the mean of a weight's inputs has."""
        return self.contexts[name].dim

    def mean_inputs(self, mean: Tensor) -> Tensor:
        """The mean, as an input that is bound; groups apart if there are several."""
        return mean

    def summed(self, response: Tensor) -> Tensor:
        """Outputs of what `to_matrix` gives, as those of the layer."""
        return response

    # conversion

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
                additions.add(self, name, CONTEXT)
        if binding.base and self.contexts:
            self._keep_base()

    def _keep_base(self) -> None:
        """The weights stay where they are as a base; the change from them starts at zero."""
        own = {name: self.stored(name) for name in self.contexts}
        for name, weight in own.items():
            zeros = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
            setattr(self, name, nn.Parameter(zeros))
        self.bases = nn.ParameterDict(own)

    def unbound(self) -> list[str]:
        """What no context binds: biases, scales, statistics."""
        own = [name for name, _ in self.named_parameters(recurse=False)]
        return [name for name in (*own, *self.running_statistics()) if name not in self.contexts]

    def make_private(self, names: Iterable[str]) -> None:
        """Let each task have its own of these tensors."""
        self.private |= {name: Part.like(self, name) for name in names}

    def template(self, name: str) -> Tensor:
        """What a task starts from: the layer's own tensor, or that of an addition."""
        added = added_to(self, name)
        if added is not None:
            return additions.start(self, *added)
        return full(self.stored(name))

    def unsuperpose(self) -> None:
        """Become the plain layer again."""
        for name, part in self.private.items():
            if added_to(self, name) is None:
                if is_quantised(self.stored(name)):
                    setattr(self, name, nn.Parameter(part.template().clone()))
                getattr(self, name).requires_grad_(part.trained)
        plain = self.plain_class
        own = "path plain_class contexts private bases guides centre rank batch_dim pairing"
        own += " input_statistics"
        for name in (*own.split(), *self.conversion_settings):
            delattr(self, name)
        self._modules.pop(STATE, None)
        self.__class__ = plain  # type: ignore[assignment]

    # its tensors, as they are stored

    def stored(self, name: str) -> Any:
        """The layer's own tensor, as it stands: not what the active task has of it."""
        own = reading.holder(self, name)
        return getattr(self, name) if own is None else own[name]  # computed by a parametrization

    def real_like(self, name: str) -> Tensor:
        """A bound weight, or its real part."""
        weight: Tensor = self.stored(name)
        return weight.real if weight.is_complex() else weight

    def weight_like(self) -> Tensor | None:
        """The first bound weight, for its type and device."""
        return next((self.real_like(name) for name in self.contexts), None)

    def slot(self, task: int) -> Layer:
        """The layer in whose weight this one's is kept for a task: itself without a pairing."""
        return self if self.pairing is None else self.pairing.slot(self, task)

    # what it uses for a task

    def select(
        self, tasks: Tasks, own: dict[str, Tensor], closed: Tensor | None = None
    ) -> Selected:
        """The contexts of these tasks, their private tensors, and bound weights kept elsewhere."""
        changes = {name + CONTEXT for name in self.contexts}
        learned = {
            n: unmoved(own[n + CONTEXT], closed) for n in self.contexts if n + CONTEXT in own
        }
        contexts = {
            name: context_of(self, name, learned.get(name), tasks) for name in self.contexts
        }
        private = {n: tensor for n, tensor in own.items() if n not in changes}
        # a running mean goes on while the pass, and its gradient, have the old
        means = {n: own[n + MEAN].clone() for n in self.contexts if n + MEAN in own}
        if self.pairing is not None:
            for name in self.contexts:
                weights = [full(self.slot(task).stored(name)) for task in tasks.unique]
                private[name] = by_row(weights, tasks.row)
        return Selected(contexts, private, means, () if closed is None else (closed,))

    def selected(self, task: TaskIds | None = None) -> tuple[Selected, int | None]:
        """What this layer uses now, and the number of rows if each has a task of its own.

        Inside a superposed model that is decided by the model; a layer used by itself is told.
        """
        if task is not None:
            weight = self.weight_like()
            assert weight is not None
            tasks = Tasks.of(whole_numbers(task), weight.device)
            return self.select(tasks, {}), None if tasks.row is None else len(tasks.row)
        selection: Selection | None = current(self)
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


class MatrixLayout(Layer):
    """Weights that are kept as (outputs, inputs)."""

    def to_matrix(self, name: str, weight: Tensor) -> Tensor:
        """The weight itself."""
        return weight

    def from_matrix(self, name: str, matrix: Tensor) -> Tensor:
        """The matrix itself."""
        return matrix
