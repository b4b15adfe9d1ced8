"""Guards: what keeps earlier tasks safe while a later one learns, in any training loop.

    model = sp.superpose(net, "hadamard", tasks=["a", "b"], base=True)
    guard = sp.learning.Projection(model)
    for task, loader in loaders.items():
        model.begin(task)
        optimiser = torch.optim.AdamW(guard.parameter_groups(task, lr=1e-3))
        for x, y in loader:
            loss = F.mse_loss(model(x, task=task), y)
            optimiser.zero_grad()
            loss.backward()
            guard.after_backward()
            optimiser.step()
        guard.end(task, loader)

`train` is such a loop. `state_dict()` has what a guard remembers: saved beside the model, it lets a
task be learned next month.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, final

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from superpose.errors import SuperposeError
from superpose.model import Superposed
from superpose.quiet import evaluating

Run = Callable[[Any], Any]  # from a batch to what the network returns


class Guard:
    """What a training loop asks; this one does nothing, and a subclass writes what it needs.

    A loop that works with every guard calls, for each step and each task::

        task, x, y = guard.rows(task, x, y)             # replay adds rows of earlier tasks
        output = model(x, task=task)
        loss = criterion(output, y) + guard.penalty(task, x, output)
        optimiser.zero_grad()
        loss.backward()
        guard.after_backward()                          # before the optimiser's step
        optimiser.step()
        guard.after_step()                              # when the weights have moved

    and `guard.end(task, batches)` when a task has been learned.
    `Projection`, `EWC` and `OnlineEWC` need `after_backward` and `end`; `SI` also `after_step`;
    `Replay` needs `rows` alone, and `Doubt` `penalty` alone. The model may be any network, and
    `DistributedDataParallel` around it is looked through.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that `describe` tells."""

    def __init__(self, model: nn.Module) -> None:
        inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        assert isinstance(inner, nn.Module)
        self.model: nn.Module = inner

    pace: float = 1.0
    """What the learning rate of all that tasks share is multiplied with."""

    all_tasks: bool = False
    """Whether a step learns something of other tasks than its own, too."""

    def rows(self, task: Any, *tensors: Tensor) -> tuple[Any, ...]:
        """Give the task of each row and the rows to learn from, the loop's own first."""
        return task, *tensors

    def penalty(self, task: Any, x: Tensor, output: Any) -> Tensor | float:
        """Give what is added to the loss."""
        return 0.0

    def after_backward(self) -> None:
        """Change the gradients."""

    def after_step(self) -> None:
        """Take note of the optimiser's step."""

    @final
    def end(self, task: Any, batches: Iterable[Any], run: Run | None = None) -> None:
        """Remember a task that was learned, from batches of its rows; it needs no labels.

        A batch is a tensor of inputs, a tuple that begins with it, or a dict of arguments. For any
        other, `run(batch)` returns what the network does for it. `task` is None for a network that
        is not told the task.
        """
        if isinstance(self.model, Superposed) and task is not None:
            for number in set(tree_leaves(self.model.superposition.ids(task))):
                if not self.model.is_open(number):
                    raise SuperposeError(
                        f"task {self.model.superposition.name_of(number)!r} has not begun, so "
                        f"there is nothing to remember: call model.begin({task!r}) before it learns"
                    )
        with evaluating(self.model):
            self.remember(task, batches, run or (lambda batch: _outputs(self.model, task, batch)))

    def remember(self, task: Any, batches: Iterable[Any], run: Run) -> None:
        """Do what `end` does; the model is in evaluation mode."""

    def parameter_groups(
        self,
        task: Any = None,
        *,
        lr: float,
        rank_lr: float | None = None,
        pace: float | None = None,
    ) -> list[dict[str, Any]]:
        """Group what learns for an optimiser: what tasks share at lr · `pace`, a task's own at lr.

        With a task, it is what tasks share and that task's own: for an optimiser that is made anew
        for each task. Without one, or if the guard learns something of `all_tasks`, it is all that
        learns. Low-rank parts have the rate `rank_lr`. `pace` is used instead of the guard's.
        """
        if rank_lr is not None and not 0 < rank_lr < math.inf:
            raise SuperposeError(f"rank_lr={rank_lr}: a learning rate is a number above 0")
        shared, own = shared_parameters(self.model), []
        if isinstance(self.model, Superposed):
            task = None if self.all_tasks else task
            own = self.model.parameter_groups(lr, rank_lr=rank_lr, task=task)
        elif rank_lr is not None:
            raise SuperposeError(
                f"rank_lr={rank_lr}: the model has no low-rank parts: superpose it with rank=…, or "
                "leave rank_lr out"
            )
        known = {id(p) for p in shared}
        rest = [{**g, "params": [p for p in g["params"] if id(p) not in known]} for g in own]
        slowed = {"params": shared, "lr": lr * (self.pace if pace is None else pace)}
        return [group for group in (slowed, *rest) if group["params"]]

    def describe(self) -> dict[str, Any]:
        """Its name and options, as JSON can hold them: a run is resumed with the same only."""
        return {"name": type(self).__name__, **{name: getattr(self, name) for name in self.OPTIONS}}

    def state_dict(self) -> dict[str, Any]:
        """All that it remembers: tensors, numbers and texts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another left off."""

    @property
    def numbers(self) -> int:
        """How many numbers it keeps while learning."""
        return 0


class Guards(Guard):
    """Several guards of one model, in order.

    >>> from superpose.learning import EWC, Replay
    >>> net = nn.Linear(2, 2)
    >>> guard = Guards(EWC(net), Replay(net))
    """

    def __init__(self, *guards: Guard) -> None:
        super().__init__(guards[0].model)
        self.guards = guards
        self.all_tasks = any(guard.all_tasks for guard in guards)

    @property
    def pace(self) -> float:  # type: ignore[override]  # theirs may change as they learn
        """The product of theirs."""
        return math.prod(guard.pace for guard in self.guards)

    def rows(self, task: Any, *tensors: Tensor) -> tuple[Any, ...]:
        """Each is given the rows that the one before it gives."""
        for guard in self.guards:
            task, *tensors = guard.rows(task, *tensors)  # type: ignore[assignment]
        return task, *tensors

    def penalty(self, task: Any, x: Tensor, output: Any) -> Tensor | float:
        """The sum of theirs."""
        return sum(guard.penalty(task, x, output) for guard in self.guards)

    def after_backward(self) -> None:
        """Each sees the gradients that the one before it leaves."""
        for guard in self.guards:
            guard.after_backward()

    def after_step(self) -> None:
        """Let each take note of the step."""
        for guard in self.guards:
            guard.after_step()

    def remember(self, task: Any, batches: Iterable[Any], run: Run) -> None:
        """Let each remember the task; batches are read once for each."""
        for guard in self.guards:
            guard.remember(task, batches, run)

    def describe(self) -> dict[str, Any]:
        """What each of them is."""
        return {"guards": [guard.describe() for guard in self.guards]}

    def state_dict(self) -> dict[str, Any]:
        """What each of them remembers."""
        return {"guards": [guard.state_dict() for guard in self.guards]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Each goes on with its own."""
        for guard, saved in zip(self.guards, state["guards"], strict=True):
            guard.load_state_dict(saved)

    @property
    def numbers(self) -> int:
        """All that they keep."""
        return sum(guard.numbers for guard in self.guards)


def shared_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that learn and that more than one task uses."""
    return list(named_shared(model).values())


def named_shared(model: nn.Module) -> dict[str, nn.Parameter]:
    """The same by name."""
    own: set[int] = set()
    if isinstance(model, Superposed):
        own = {id(parameter) for parameter in model.private_state.parameters()}
    return {n: p for n, p in model.named_parameters() if p.requires_grad and id(p) not in own}


def rows_in(batch: Any) -> int:
    """How many rows a batch has: those of its first tensor."""
    tensors = (leaf for leaf in tree_leaves(_plain(batch)) if isinstance(leaf, Tensor))
    return next((len(tensor) for tensor in tensors), 0)


def single_rows(batch: Any) -> Iterator[Any]:
    """Each row of a batch, as a batch of one."""
    count = rows_in(batch)

    def row(place: int) -> Callable[[Any], Any]:
        return lambda leaf: (
            leaf[place : place + 1]
            if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == count
            else leaf
        )

    return (tree_map(row(place), _plain(batch)) for place in range(count))


def copy_tensors(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy tensors of the same names and shapes."""
    for name, tensor in own.items():
        if name not in saved or saved[name].shape != tensor.shape:
            there = tuple(saved[name].shape) if name in saved else "missing"
            raise SuperposeError(
                f"the state is that of a guard of another network: {name!r} is {there} in it, and "
                f"{tuple(tensor.shape)} here"
            )
        tensor.copy_(saved[name])


def _plain(batch: Any) -> Any:
    return dict(batch) if isinstance(batch, Mapping) else batch  # such as that of a tokenizer


def _outputs(model: nn.Module, task: Any, batch: Any) -> Any:
    given = {} if task is None else {"task": task}
    if isinstance(batch, Mapping):
        return model(**batch, **given)
    return model(batch[0] if isinstance(batch, (tuple, list)) else batch, **given)
