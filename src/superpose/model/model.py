"""The superposed model: the choice of the task, and one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from superpose import functional
from superpose.cost import Cost, cost
from superpose.errors import SuperposeError
from superpose.model.beside import freeze
from superpose.model.classes import empty_model
from superpose.model.mixed import run_mixed
from superpose.model.state import State
from superpose.model.summary import Summary, summarise
from superpose.model.tasks import WHOLE, Name, Superposition, Task, check_names
from superpose.model.ways import declared_way
from superpose.nn.flats import RANK
from superpose.nn.layer import Layer
from superpose.nn.names import inside, joined
from superpose.nn.options import check_way
from superpose.nn.private import STATE, Private
from superpose.nn.view import Ids, View, active, chosen

if TYPE_CHECKING:
    from superpose.recognition import Evidence, Found


class Superposed(State):
    """A superposed model: the plain module, called with a task.

    Its class is made from the plain module's, so everything the plain module can do is still there.
    """

    superposition: Superposition
    private_state: Private
    _plain: ClassVar[type[nn.Module]]
    _kind: ClassVar[type[Superposed]]

    # tasks

    @property
    def tasks(self) -> list[Name]:
        """The names of all tasks."""
        return list(self.superposition.names)

    @contextmanager
    def task(self, task: Task) -> Iterator[None]:
        """Choose the task for code that only calls model(x), or, with one task, parts of the model.

        It holds for this thread, or this async task.
        """
        own = {self.superposition.home: (self, self.superposition.ids(task))}
        token = chosen.set({**chosen.get(), **own})
        try:
            yield
        finally:
            chosen.reset(token)

    def begin(self, *tasks: Name) -> None:
        """Open the superposed weights to tasks that have a base, before they learn.

        Until then a task is its base exactly, and cannot be trained. Without a base all tasks are
        open, and this does nothing. `sp.learning.train` calls it.

        >>> from superpose import superpose
        >>> net, x = nn.Linear(4, 2), torch.randn(3, 4)
        >>> model = superpose(net, tasks=["cats", "dogs"], base=True)
        >>> model.begin("cats")
        >>> model.begun
        ['cats']
        """
        numbers = [self.superposition.number(task) for task in tasks]
        self.check_layers()
        if self.superposition.options.base:
            self.private_state.begun.update(numbers)

    @property
    def begun(self) -> list[Name]:
        """The tasks to which the superposed weights are open: without a base, all of them."""
        return [name for name, number in self.superposition.names.items() if self.is_open(number)]

    def is_open(self, number: int) -> bool:
        """Whether the superposed weights are open to the task of this number."""
        return not self.private_state.is_closed(number)

    def add_task(self, name: Name | None = None) -> Name:
        """Add a task, named or numbered. An optimiser made before does not have its parameters.

        Its private parameters start as the plain model's were.

        >>> from superpose import superpose
        >>> model = superpose(nn.Linear(4, 2), tasks=["cats", "dogs"])
        >>> optimiser = torch.optim.Adam(model.parameters(), 1e-5)
        >>> name = model.add_task("birds")
        >>> for group in model.parameter_groups(1e-5, task=name):
        ...     optimiser.add_param_group(group)
        """
        names = self.superposition.names
        self.check_layers()
        taken = (*names.values(), *(known for known in names if isinstance(known, int)))
        number = max(self.superposition.spent, *(one + 1 for one in taken))
        label: Name = number if name is None else name
        check_names([*names, label])
        self._check_free(label)
        names[label] = number
        self.superposition.note_names()
        self.private_state.add([number])
        return label

    def remove_task(self, task: Name) -> None:
        """Forget a task: its name and its private parameters. The shared weights stay as they are.

        Its number, and with it its contexts, is never given to another task.
        """
        known = self.superposition
        number = known.number(task)
        if len(known.names) == 1:
            raise SuperposeError(f"{task!r} is the only task: a model without tasks cannot be run")
        known.spent = max(known.spent, number + 1)
        del known.names[known.name_of(number)]
        self.private_state.remove(number)
        self.__dict__.pop("_kept_views", None)

    def rename_task(self, old: Name, new: str) -> None:
        """Change the name of a task; its contexts and private parameters stay."""
        names, renaming = self.superposition.names, self.superposition.number(old)
        renamed = [(new if n == renaming else name, n) for name, n in names.items()]
        check_names([name for name, _ in renamed])
        self._check_free(new, renaming)
        names.clear()
        names.update(renamed)

    def _check_free(self, name: Name, renaming: int | None = None) -> None:
        """A task with a text as name is chosen by its number too, which must not mean another."""
        others = {known: n for known, n in self.superposition.names.items() if n != renaming}
        texts = {n: known for known, n in others.items() if isinstance(known, str)}
        if isinstance(name, WHOLE) and name in texts:
            raise SuperposeError(
                f"{name!r} cannot name a task: it is the number of {texts[name]!r}; use a text"
            )

    # what learns

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let all of it learn, or nothing; the base, and what tasks start from, stay frozen."""
        super().requires_grad_(requires_grad)
        freeze(self, self.superposition.options, warn=False)
        return self

    def private_parameters(self, task: Name) -> list[nn.Parameter]:
        """The trainable parameters that a task has for itself: one, of all its numbers, flat.

        A network whose numbers are of several types has one for each type, and low-rank parts have
        one of their own.
        """
        key = str(self.superposition.number(task))
        flats = [flats.own[key] for flats in self.private_state.flats.values()]
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
        """
        of_rank = [one for one in self.private_state.flats.values() if one.kind == RANK]
        if rank_lr is not None and not of_rank:
            raise SuperposeError(
                f"rank_lr={rank_lr}: the model has no low-rank parts: superpose it with rank=…, or "
                "leave rank_lr out"
            )
        apart = {id(flat) for flats in of_rank for flat in flats.own.values()}
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
        return self.private_state.of(self.superposition.number(task))

    # which task an input belongs to

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
        classifier's outputs in every task, the default else), "entropy" (of the outputs), or an
        `Evidence`.

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

    # one pass

    @property
    def mixed(self) -> str:
        """How mixed batches are computed: "grouped", or "direct" where that is said to be right."""
        return self.superposition.options.mixed or declared_way(self)

    @mixed.setter
    def mixed(self, way: str) -> None:
        check_way(way)
        self.superposition.options = replace(self.superposition.options, mixed=way)

    def run(self, view: View, *inputs: Any, **options: Any) -> Any:
        """Run the network with a view, which `view(task)` makes; a mixed batch is direct.

        The task is data here, so this can be mapped over tasks with `torch.func.vmap`, and compiled
        with `fullgraph=True`.
        """
        before = active.view, active.home
        active.view, active.home = view, self.superposition.home
        try:
            if self.superposition.complex_valued:
                return self._run_complex(*inputs, **options)
            return self._plain.forward(self, *inputs, **options)
        finally:
            active.view, active.home = before

    def _run_complex(self, *inputs: Any, **options: Any) -> Any:
        inputs, options = tree_map(_to_complex, (inputs, options))
        try:
            return tree_map(_to_real, self._plain.forward(self, *inputs, **options))
        except RuntimeError as error:
            if "complex" not in str(error).lower():
                raise
            raise SuperposeError(
                "the forward pass uses a function that complex numbers do not have: use "
                "activations that are modules, such as nn.ReLU(), which are split, or the family "
                f"'phase', which is complex superposition for a real network ({error})"
            ) from error

    def _ids(self, task: Task | None) -> Ids:
        known = self.superposition
        if task is not None:
            return known.ids(task)
        found = chosen.get().get(known.home)
        if found is None:
            raise SuperposeError(
                "no task was given: call model(x, task=…), or wrap the call in "
                "`with model.task(…):`"
            )
        return found[1]

    def _check_base(self, ids: Ids) -> None:
        """Refuse to train a task that has not begun, and a base that would learn."""
        known, begun = self.superposition, self.private_state.begun
        if self.training:
            for number in [ids] if isinstance(ids, int) else ids:
                if number not in begun:
                    name = known.name_of(number)
                    raise SuperposeError(
                        f"task {name!r} has not begun, and is its base: call model.begin({name!r}) "
                        "before it learns, or model.eval() to run the base"
                    )
        if torch.is_grad_enabled():
            for layer in self.superposed_layers:
                bases = layer._modules.get("bases")
                for name, base in () if bases is None else bases._parameters.items():
                    if base is not None and base.requires_grad and isinstance(base, nn.Parameter):
                        raise SuperposeError(
                            f"{joined(layer.path, name)} is part of the base and would learn, "
                            "which changes the base of all tasks: freeze it, or let all learn but "
                            "the base, model.requires_grad_(True)"
                        )

    def _run_with_base(self, ids: Ids, inputs: Any, options: Any) -> Any:
        """A pass in training: buffers that all tasks share must be the same after it."""
        before = [
            (m, n, b, _version(b))
            for m, n in self._shared_buffers()
            if (b := m._buffers[n]) is not None
        ]
        y = self._run_ids(ids, inputs, options)
        for module, name, buffer, version in before:
            now = module._buffers[name]
            if now is not buffer or _version(buffer) != version:
                full = next(joined(p, name) for p, m in self.named_modules() if m is module)
                raise SuperposeError(
                    f"{full!r}, which all tasks share, was changed by a pass in training, and with "
                    "it the base of all tasks: name it in private_layers, so that each task has "
                    "its own, or put its module in evaluation mode"
                )
        return y

    def _shared_buffers(self) -> list[tuple[nn.Module, str]]:
        found: list[tuple[nn.Module, str]] | None = self.__dict__.get("_shared")
        if found is None:
            found = [
                (module, name)
                for path, module in self.named_modules()
                if not inside(path, [STATE])
                for name in module._buffers
                if not (isinstance(module, Layer) and name in module.private)
            ]
            self.__dict__["_shared"] = found
        return found

    def _run_ids(self, ids: Ids, inputs: Any, options: Any) -> Any:
        if isinstance(ids, int):
            return self.run(self.view_of(ids), *inputs, **options)
        return run_mixed(self, ids, self.mixed, inputs, options)

    # what it is

    def cost(self) -> Cost:
        """Numbers and bytes stored, beside the paper's Table 1 and beside separate models."""
        bound = [b.context for layer in self.superposed_layers for b in layer.bound.values()]
        known = self.superposition
        return cost(self, bound, self.private_state, len(known.names), known.plain_size)

    def summary(self) -> Summary:
        """What is superposed, private or shared, and how mixed batches are computed."""
        return summarise(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles name the plain class: the superposed one is made when needed."""
        plain: Any = type(self)._plain
        parts = vars(plain).get("_made_of", (plain,))
        return empty_model, (type(self)._kind, *parts), self.__getstate__()


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _to_complex(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return functional.widened(value) + 0j


def _to_real(value: Any) -> Any:
    return value.real if isinstance(value, Tensor) and value.is_complex() else value
