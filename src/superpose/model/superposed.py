"""The superposed model: the choice of the task, and its forward pass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from superpose import functional
from superpose.cost import Cost, cost
from superpose.errors import SuperposeError
from superpose.model import probe, ways
from superpose.model.batch import Batch
from superpose.model.lock import lock_of
from superpose.model.pretrained import generating, saving
from superpose.model.structure import flatten
from superpose.model.tasks import Ids, Name, Superposition, Task, check_names
from superpose.nn.convert import AUTO, freeze
from superpose.nn.flat import RANK
from superpose.nn.gate import check_frozen, closed_to
from superpose.nn.layer import Layer
from superpose.nn.names import joined
from superpose.nn.plain import layer_class, made_of
from superpose.nn.private import STATE, Kept, PrivateState, is_private, modules
from superpose.nn.quantised import check_learning
from superpose.nn.recomputing import Pass, follow
from superpose.nn.selection import (
    NotDirect,
    Selected,
    Selection,
    Stale,
    Tasks,
    Watched,
    active,
    of_row,
    outside,
    untraced,
)
from superpose.nn.summary import Summary, summarise

if TYPE_CHECKING:
    from superpose.recognition import Evidence, Found

MEANING = "superposition"  # in the metadata of a state

_last: WeakKeyDictionary[nn.Module, tuple[Any, Kept, Selection]] = WeakKeyDictionary()
"""The selection that each model made last: the tokens of a text are generated with one."""

_chosen: ContextVar[Mapping[int, Ids]] = ContextVar("chosen", default={})  # noqa: B039
"""The tasks' numbers that `with model.task(…)` chose, by model, for each thread and async task."""


class Superposed(nn.Module):
    """A superposed model: the plain module, called with a task.

    Its class is made from the plain module's, so everything the plain module can do is still there.
    """

    superposition: Superposition
    starts_from_base: ClassVar[bool] = True  # with a base, a task is it until it begins to learn
    _plain: ClassVar[type[nn.Module]]
    _kind: ClassVar[type[Superposed]]

    @property
    def tasks(self) -> list[Name]:
        """The names of all tasks."""
        return list(self.superposition.names)

    @property
    def mixed(self) -> str:
        """How mixed batches are computed: direct, mapped, grouped, or auto for the first right one.

        One that was chosen, and is not right for the network, is an error when a batch comes. Set
        anew, as in `model.mixed = "auto"`, the way is found out again, which is needed when the
        network was changed by hooks or attributes.
        """
        return self.superposition.conversion.mixed

    @mixed.setter
    def mixed(self, way: str) -> None:
        self.superposition.conversion = replace(self.superposition.conversion, mixed=way)
        self.superposition.ways.clear()

    @contextmanager
    def task(self, task: Task) -> Iterator[None]:
        """Choose the task for code that only calls model(x), or, with one task, parts of the model.

        So an encoder-decoder model generates text, which calls its encoder by itself.
        """
        chosen, before = self.superposition.ids(task), outside.get()

        def of_part(layer: Layer) -> Selected | None:
            if not isinstance(chosen, int) or not any(layer is own for own in layers(self)):
                return before(layer)
            return self.selection_of(chosen).layers[layer.path]

        token = _chosen.set({**_chosen.get(), id(self.superposition): chosen})
        part = outside.set(of_part)
        try:
            yield
        finally:
            _chosen.reset(token)
            outside.reset(part)

    def add_task(self, name: str | None = None) -> Name:
        """Add a task, named or numbered. An optimiser made before does not have its parameters.

        Its private parameters start as the plain model's were. Give them to the optimiser, with a
        learning rate, or make a new one; if they are forgotten, a warning comes with the second
        step. With a learning-rate scheduler it is simplest to make both anew for the new task.

        >>> from superpose import superpose
        >>> model = superpose(nn.Linear(4, 2), tasks=["cats", "dogs"])
        >>> optimiser = torch.optim.Adam(model.parameters(), 1e-5)
        >>> name = model.add_task("birds")
        >>> for group in model.parameter_groups(1e-5, task=name):
        ...     optimiser.add_param_group(group)
        """
        names = self.superposition.names
        taken = (*names.values(), *(known for known in names if isinstance(known, int)))
        number = max(self.superposition.spent, *(one + 1 for one in taken))
        label: Name = number if name is None else name
        self.superposition.ways.clear()  # what was right for one task may not be for two
        check_names([*names, label])
        self._check_free(label)
        names[label] = number
        private_state(self).add([number])
        return label

    def begin(self, task: Name) -> None:
        """Mark a task as begun, so that it is no longer its base.

        A task begins by itself, with the first gradient that `backward()` brings, or when its
        private tensors change. Call this only if you write to the shared weights by other means:
        with gradients of `torch.func`, or by copying the parameters of another model one by one.
        """
        private_state(self).begin([self.superposition.number(task)])

    def remove_task(self, task: Name) -> None:
        """Forget a task: its name and its private parameters. The shared weights stay as they are.

        Its number, and with it its contexts, is never given to another task.
        """
        superposition = self.superposition
        number = superposition.number(task)
        if len(superposition.names) == 1:
            raise SuperposeError(f"{task!r} is the only task: a model without tasks cannot be run")
        superposition.spent = max(superposition.spent, number + 1)
        for name in [n for n, known in superposition.names.items() if known == number]:
            del superposition.names[name]
        private_state(self).remove(number)

    def rename_task(self, old: Name, new: str) -> None:
        """Change what a task is called; its contexts and private parameters stay."""
        names, renaming = self.superposition.names, self.superposition.number(old)
        renamed = [(new if n == renaming else name, n) for name, n in names.items()]
        check_names([name for name, _ in renamed])
        self._check_free(new)
        names.clear()
        names.update(renamed)

    def _check_free(self, name: Name) -> None:
        """A task with a name is chosen by its number too, which must not come to mean another."""
        taken = {n: known for known, n in self.superposition.names.items() if known != n}
        if name in taken:
            raise SuperposeError(
                f"{name!r} cannot name a task: it is the number of {taken[name]!r}; use a text"
            )

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let all of it learn, or nothing; the base stays frozen."""
        super().requires_grad_(requires_grad)
        freeze(self, self.superposition.conversion.base)
        return self

    def private_parameters(self, task: Name) -> list[nn.Parameter]:
        """The trainable parameters that a task has for itself: one, of all its numbers, flat.

        A network whose numbers are of several types has one for each type.
        """
        number = self.superposition.number(task)
        flats = [group.of(number) for group in private_state(self).groups.values()]
        return [flat for flat in flats if isinstance(flat, nn.Parameter) and flat.requires_grad]

    def parameter_groups(
        self, lr: float, *, rank_lr: float | None = None, task: Name | None = None
    ) -> list[dict[str, Any]]:
        """All that learns, for an optimiser, the low-rank parts with a learning rate of their own.

        With a task, it is what that task has for itself, for an optimiser that was made before.

        >>> from superpose import superpose
        >>> model = superpose(nn.Linear(40, 20), tasks=3, base=True, rank=2)
        >>> optimiser = torch.optim.Adam(model.parameter_groups(1e-3, rank_lr=1e-2))
        >>> [len(group["params"]) for group in optimiser.param_groups]
        [4, 3]
        >>> for group in model.parameter_groups(1e-3, rank_lr=1e-2, task=model.add_task()):
        ...     optimiser.add_param_group(group)
        """
        of_rank = [g for g in private_state(self).groups.values() if g.kind == RANK]
        if rank_lr is not None and not of_rank:
            raise SuperposeError(
                f"rank_lr={rank_lr}: the model has no low-rank parts: superpose it with rank=…, or "
                "leave rank_lr out"
            )
        apart = {id(flat) for group in of_rank for flat in group.parameters()}
        every = self.parameters() if task is None else self.private_parameters(task)
        learns = [parameter for parameter in every if parameter.requires_grad]
        rest = [parameter for parameter in learns if id(parameter) not in apart]
        low_rank = [parameter for parameter in learns if id(parameter) in apart]
        groups = [
            {"params": rest, "lr": lr},
            {"params": low_rank, "lr": lr if rank_lr is None else rank_lr},
        ]
        return [group for group in groups if group["params"]]

    def private_tensors(self, task: Name) -> dict[str, Tensor]:
        """What a task has for itself, by the plain network's names: views, which can be written to.

        >>> from superpose import superpose
        >>> model = superpose(nn.Linear(4, 2), tasks=["cats", "dogs"])
        >>> model.private_tensors("dogs")["bias"].shape
        torch.Size([2])
        """
        return private_state(self).of(self.superposition.number(task))

    @property
    def recognisable(self) -> list[Name]:
        """The tasks of whose inputs something is known, so that `recognise` can find them."""
        from superpose import recognition  # it stands on the model, so it is imported when asked

        return recognition.recognisable(self)

    def remember(self, *inputs: Any, task: Name, classes: Any = None, **options: Any) -> None:
        """Take note of what inputs of a task look like, so that `recognise` can find it.

        The inputs are given as to the model. They add to what the task kept of earlier ones, while
        it learned or by such a call. Nothing is learned from them. They need no labels, unless
        classes are told apart, `Statistics(…, classes=N)`: then `classes` has that of each row.
        """
        from superpose import recognition

        recognition.remember(self, inputs, options, task, classes)

    def recognise(
        self,
        *inputs: Any,
        among: Iterable[Name] | None = None,
        together: bool = False,
        evidence: str | Evidence | None = None,
        **options: Any,
    ) -> Found:
        """Find the task of each row: `model(x, task=model.recognise(x).task)`.

        `together=True` is for rows that are known to be of one task, whose evidence adds up;
        `among` names the tasks that are possible. `evidence` is "inputs" (statistics that tasks
        keep of their inputs, the default where there are some), "outputs" (log-sum-exp of a
        classifier's outputs in every task, the default else), "entropy" (of the outputs),
        "shortlist" (outputs, for the eight likeliest tasks by their inputs), or an `Evidence`.

        >>> from superpose import superpose
        >>> _ = torch.manual_seed(0)
        >>> model = superpose(nn.Linear(8, 3), tasks=["cats", "dogs"])
        >>> model.remember(torch.randn(100, 8), task="cats")
        >>> model.remember(torch.randn(100, 8) + 2, task="dogs")
        >>> found = model.recognise(torch.tensor([[2.0] * 8, [0.0] * 8, [90.0] * 8]))
        >>> found.task, found.known
        (['dogs', 'cats', 'dogs'], tensor([ True,  True, False]))
        """
        from superpose import recognition

        return recognition.recognise(
            self, inputs, options, among=among, together=together, evidence=evidence
        )

    def selection(self, task: Task | None = None) -> Selection:
        """Contexts and private tensors of a task, or of one per row or token, for `run`."""
        return self.selection_of(self._ids(task))

    @untraced
    def selection_of(self, ids: Ids) -> Selection:
        """The same by the tasks' numbers; where nothing is learned, the last one is kept."""
        with self._passing():
            return self._selection_of(ids)

    def _selection_of(self, ids: Ids) -> Selection:
        own = layers(self)
        if torch.is_grad_enabled() or any(layer.pairing is not None for layer in own):
            return self._select(ids, own)
        each = _each(ids)
        ends = [w for w in (own[0].weight_like(), own[-1].weight_like()) if w is not None]
        types = [(weight.dtype, weight.device) for weight in ends]
        key = (repr(ids), types)
        state, last = own[-1].private_state, _last.get(self)
        if last is not None and last[0] == key and last[1].holds(state, each):
            return last[2]
        made = self._select(ids, own)
        _last[self] = (key, Kept.of(state, each), made)
        return made

    def _select(self, ids: Ids, own: list[Layer]) -> Selection:
        device = _device(own)
        tasks = Tasks.of(ids[0] if isinstance(ids, tuple) else ids, device)
        row = tasks.row
        if isinstance(ids, tuple) and row is not None:
            row = row.unsqueeze(0)
        state = own[-1].private_state
        if torch.is_grad_enabled():
            for task in tasks.unique:
                state.ran.setdefault(task, False)
        private = state.select(tasks)
        closed = closed_to(state, tasks, device, lambda: self._begins(own, tasks))
        found = {la.path: la.select(tasks, private.get(la.path, {}), closed) for la in own}
        return Selection(row, found)

    def _begins(self, own: list[Layer], tasks: Tasks) -> bool:
        """Whether a gradient tells that these tasks begin to learn.

        In evaluation it may be that of a saliency map: there a step of an optimiser tells, if the
        task has something for itself that learns.
        """
        private = any(flat.requires_grad for flat in own[-1].private_state.flats(tasks.unique))
        if private:
            return self.training
        return any(la.stored(name).requires_grad for la in own for name in la.contexts)

    def base_selection(self) -> Selection:
        """The base itself, which every task starts from, for `run`.

        >>> from superpose import superpose
        >>> net, x = nn.Linear(4, 2), torch.randn(3, 4)
        >>> model = superpose(net, tasks=2, base=True)
        >>> torch.equal(model.run(model.base_selection(), x), net(x))
        True
        """
        state, own = private_state(self), layers(self)
        if state.mark is None or not self.starts_from_base:
            raise SuperposeError(
                "the model has no base by itself: superpose(…, base=True) keeps it"
            )
        private = state.starts()
        device = _device(own)
        tasks = Tasks.of(next(iter(self.superposition.names.values())), device)
        closed = torch.ones((), device=device)
        return Selection(
            None, {la.path: la.select(tasks, private.get(la.path, {}), closed) for la in own}
        )

    def tensors_of(self, number: int) -> dict[str, dict[str, Tensor]]:
        """For each layer, by its path, what a plain one needs to do what it does for a task."""
        selection = self.selection_of(number)
        return {la.path: la.plain_tensors(selection.layers[la.path]) for la in layers(self)}

    def _ids(self, task: Task | None) -> Ids:
        known = self.superposition
        ids = _chosen.get().get(id(known)) if task is None else known.ids(task)
        if ids is None:
            raise SuperposeError(
                "no task was given: call model(x, task=…), or wrap the call in "
                "`with model.task(…):`"
            )
        return ids

    def run(self, selection: Selection, *inputs: Any, **options: Any) -> Any:
        """Run the network with a selection, which `selection(task)` makes; a mixed batch is direct.

        The task is data here, so this can be mapped over tasks with `torch.func.vmap`, and compiled
        with `fullgraph=True`.
        """
        if torch.compiler.is_compiling():
            if selection.rows is not None and not self.superposition.knows_direct:
                raise SuperposeError(
                    "whether a mixed batch of this network can be run directly is found out with "
                    "the first one: run model(x, task=[…]) once, before it is compiled or exported"
                )
            return self.pass_of(selection, inputs, options)
        if selection.rows is not None:
            self._check_direct(selection, inputs, options)
        with self._passing():
            return self.pass_of(selection, inputs, options)

    def pass_of(self, selection: Selection, inputs: Any, options: Any) -> Any:
        """The forward pass of a selection, unchecked."""
        if active.asked is not None:
            selection = selection._replace(layers=Watched(selection.layers, active.asked))
        before, active.selection = active.selection, selection
        try:
            if self.superposition.complex_valued:
                inputs, options = tree_map(_to_complex, (inputs, options))
                with _explaining_complex():
                    return tree_map(_to_real, self._plain.forward(self, *inputs, **options))
            return self._plain.forward(self, *inputs, **options)
        finally:
            active.selection = before

    @untraced
    def _passing(self) -> AbstractContextManager[None]:
        """No other thread tries out ways of the network meanwhile."""
        return lock_of(self).shared

    @untraced
    def _followed(self, selection: Selection | None, returned: Any) -> Any:
        """What a pass returns; computed again for its gradient, it has the same selection."""
        if torch.is_grad_enabled():  # a tree leaves garbage, which one tensor need not
            tensors = [returned] if isinstance(returned, Tensor) else flatten(returned)[0]
            follow(Pass(self, selection), tensors)
        return returned

    @untraced
    def _for_a_pass(self, ids: Ids, inputs: Any, options: Any) -> Selection | Batch:
        """What one pass runs with; a mixed batch that is mapped or grouped is given back."""
        if torch.is_grad_enabled():
            own = layers(self)
            if self.training:
                check_learning(own)
            if self.starts_from_base:
                check_frozen(own)
        if isinstance(ids, int):
            return self.selection_of(ids)
        batch, each = self._batch(ids, inputs, options)
        if len(each) == 1 or (batch.tokens and len(set(each)) == 1):
            return self.selection_of(each[0])
        found = probe.find(self, batch, each, self.mixed)
        if found.name != "direct":
            return batch
        selection = self.selection_of(ids)
        if torch.is_grad_enabled() or not private_state(self).all_start(each):
            return selection
        return of_row(selection, 0)  # all are the base, to the last bit

    @untraced
    def _in_turn(self, ids: Ids, batch: Batch, way: str) -> Any:
        """A mixed batch that is mapped or grouped."""
        try:
            return batch.returned(*self._passed(ids, batch, way))
        except Stale:
            probe.forget(self, batch, way)
            return batch.returned(*self._passed(ids, batch, way))

    @untraced
    def _after_all(self, error: NotDirect, ids: Ids, inputs: Any, options: Any) -> Any:
        """A mixed batch that turned out not to be direct at its sizes."""
        if isinstance(ids, int) or self.mixed == "direct":
            raise error
        batch, _ = self._batch(ids, inputs, options)
        if batch.objects:  # the pass that failed may have written to them
            raise error
        return self._in_turn(ids, batch, "grouped")

    def _passed(self, ids: Ids, batch: Batch, way: str) -> Any:
        each = _each(ids)
        found = probe.find(self, batch, each, way)
        with self._passing():
            if found.name == "mapped":
                returned = ways.mapped(self, self.selection_of(ids), batch, found.dims)
            else:
                returned = ways.grouped(self, each, batch, found.dims)
        return self._followed(None, returned)

    def _batch(self, ids: Ids, inputs: Any, options: Any) -> tuple[Batch, list[int]]:
        each = _each(ids)
        return Batch.of(self, len(each), isinstance(ids, tuple), (inputs, options)), each

    @untraced
    def _check_direct(self, selection: Selection, inputs: Any, options: Any) -> None:
        assert selection.row is not None
        numbers = list(self.superposition.names.values())
        each = [numbers[slot % len(numbers)] for slot in selection.row.flatten().tolist()]
        ids: Ids = (each,) if selection.row.ndim == 2 else each
        batch, _ = self._batch(ids, inputs, options)
        if len(set(each)) > 1:
            probe.find(self, batch, each, "direct")

    def cost(self) -> Cost:
        """Numbers and bytes stored, beside the paper's Table 1 and beside separate models."""
        bound = [context for layer in layers(self) for context in layer.contexts.values()]
        known = self.superposition
        return cost(self, bound, private_state(self), len(known.names), known.plain_size)

    def summary(self) -> Summary:
        """What is superposed, private or shared, and how mixed batches are computed."""
        found = dict.fromkeys(map(str, self.superposition.ways.values()))
        if self.mixed != AUTO and not found:
            found = {f"{self.mixed}, as it was chosen": None}
        base = self.superposition.conversion.base
        return summarise(self, layers(self), list(found), base)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """As for any module; what its tensors mean is kept beside PyTorch's number of versions."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        beside = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if beside is not None:
            beside[MEANING] = self.superposition.meaning()

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """What tasks have for themselves is in the last layer, which may have been another one."""
        error_msgs += self.superposition.differences(local_metadata.get(MEANING))
        place = f"{prefix}{joined(layers(self)[-1].path, STATE)}."
        for key in [one for one in state_dict if one.startswith(prefix) and is_private(one)]:
            own = key.rpartition(f"{STATE}.")[2]
            state_dict[place + own] = state_dict.pop(key)
        lists = (missing_keys, unexpected_keys, error_msgs)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles name the plain class: the superposed one is made when needed."""
        parts = (type(self)._kind, *made_of(type(self)._plain))
        return _empty, parts, self.__getstate__()  # type: ignore[no-untyped-call]


def layers(model: nn.Module) -> list[Layer]:
    """The superposed layers of a model, in order, each of them once."""
    return [module for module in modules(model) if isinstance(module, Layer)]


def _device(own: list[Layer]) -> torch.device:
    """Where the layers are."""
    return next(w.device for w in (layer.weight_like() for layer in own) if w is not None)


def _each(ids: Ids) -> list[int]:
    """The number of each row, or token; of one task, its own."""
    return [ids] if isinstance(ids, int) else ids[0] if isinstance(ids, tuple) else ids


def private_state(model: nn.Module) -> PrivateState:
    """What each task of a superposed model has for itself."""
    return layers(model)[-1].private_state


@functools.cache
def superposed_class(plain: Any, kind: Any) -> Any:
    """The class of a superposed model: of this kind, and the plain class in all else."""

    @functools.wraps(plain.forward)
    def forward(self: Any, *inputs: Any, task: Task | None = None, **options: Any) -> Any:
        ids = self._ids(task)
        found = self._for_a_pass(ids, inputs, options)
        if isinstance(found, Batch):
            return self._in_turn(ids, found, self.mixed)
        try:
            with self._passing():
                return self._followed(found, self.pass_of(found, inputs, options))
        except NotDirect as error:
            return self._after_all(error, ids, inputs, options)

    forward.__signature__ = _with_task(plain.forward)  # type: ignore[attr-defined]
    # the compiler would make a graph for each name of a task here; it starts with `run` instead
    members = {"forward": untraced(forward, recursive=False), "_plain": plain, "_kind": kind}
    own = getattr(plain, "generate", None)
    if own is not None and "task" not in inspect.signature(own).parameters:  # Whisper's is another
        members["generate"] = generating(plain)
    if callable(getattr(plain, "save_pretrained", None)):
        members["save_pretrained"] = saving(plain)
    return type(f"{kind.__name__}{plain.__name__}", (kind, plain), members)


def _with_task(plain: Callable[..., Any]) -> inspect.Signature:
    """The signature of a forward pass, and `task`: trainers, `generate`, exporters look there."""
    signature = inspect.signature(plain)
    task = inspect.Parameter("task", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = {**signature.parameters, "task": task}
    return signature.replace(parameters=sorted(parameters.values(), key=lambda one: one.kind))


def _empty(kind: Any, *parts: Any) -> Any:
    made = superposed_class(layer_class(*parts), kind)
    return made.__new__(made)


@contextmanager
def _explaining_complex() -> Iterator[None]:
    """Tell what to do about functions that PyTorch does not have for complex numbers."""
    try:
        yield
    except RuntimeError as error:
        if "complex" not in str(error).lower():
            raise
        raise SuperposeError(
            "the forward pass uses a function that complex numbers do not have: use activations "
            "that are modules, such as nn.ReLU(), which are split, or the family 'phase', which is "
            f"complex superposition for a real network ({error})"
        ) from error


def _to_complex(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return functional.widened(value) + 0j


def _to_real(value: Any) -> Any:
    return value.real if isinstance(value, Tensor) and value.is_complex() else value
