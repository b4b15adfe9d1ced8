"""`check_mixed`: which ways of a mixed batch are right for a network, on inputs that are given."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.model.batch import Batch, rows_in_returned, rows_of
from superpose.model.mixed import run_mixed
from superpose.model.model import Superposed
from superpose.model.structure import flatten
from superpose.nn.flats import WRITTEN
from superpose.nn.forms.norm import BatchNorm, ComplexNorm
from superpose.nn.options import WAYS

TOLERANCE = 1e-4  # of the largest number, in single precision
MOST_TASKS = 4
RANDOM = (
    "the network draws random numbers in training mode (functional dropout, dropped paths), so "
    "rows cannot be compared: set these to 0, or check it in evaluation mode"
)


@dataclass(frozen=True)
class Checked:
    """How each way of a mixed batch compares with the rows alone.

    `off` is how far outputs, gradients and statistics are from those of the rows alone, as a share
    of the largest number; `why` says of a way that is not right what is wrong with it; `seconds` is
    the time of a pass, and `notes` is what else was seen.
    """

    off: dict[str, float] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def right(self) -> list[str]:
        """The ways that agree with the rows alone, on these inputs."""
        return [way for way in WAYS if way in self.off and way not in self.why]

    @property
    def best(self) -> str:
        """The quickest of them."""
        if not self.right:
            raise SuperposeError(
                f"no way is right for this network, so run one task at a time:\n{self}"
            )
        return min(self.right, key=lambda way: self.seconds[way])

    def __str__(self) -> str:
        lines = []
        for way in WAYS:
            if way in self.why:
                lines.append(f"{way}: not right: {self.why[way]}")
            elif way in self.off:
                lines.append(
                    f"{way}: right, {self.off[way]:.1g} off, {1e3 * self.seconds[way]:.3g} ms"
                )
        return "\n".join([*lines, *self.notes])


def check_mixed(
    model: Superposed,
    *inputs: Any,
    tasks: Any = None,
    tolerance: float = TOLERANCE,
    rounds: int = 5,
    **options: Any,
) -> Checked:
    """Compare both ways of a mixed batch with its rows alone, on copies of the model; time them.

    Values, gradients, and in training the statistics of tasks are compared. What is right for these
    inputs may be wrong for others, if the network sorts, gathers or masks rows by their values:
    give inputs like those that it will meet, and look at the code. The model stays as it is.

    >>> from superpose import superpose
    >>> model = superpose(nn.Linear(4, 2), tasks=3)
    >>> check_mixed(model, torch.randn(6, 4)).right
    ['grouped', 'direct']
    """
    if not isinstance(model, Superposed):
        raise SuperposeError(f"{type(model).__name__} is not superposed: superpose() it first")
    batch = rows_of(model, inputs, options)
    if batch.rows < 2:
        raise SuperposeError("check_mixed needs two rows or more, to give them different tasks")
    found = Checked()
    with _quietly():
        trial = _trial(model)
        each = _tasks_of_rows(trial, tasks, batch.rows)
        found.notes.extend(_keeps_something(model, each, batch))
        if model.training and _is_random(trial, each, batch):
            found.off["grouped"], found.why["direct"] = 0.0, RANDOM
        else:
            for way in WAYS:
                _compare(found, way, trial, each, batch, tolerance)
        _time(found, trial, each, batch, rounds)
    return found


@contextmanager
def _quietly() -> Iterator[None]:
    with torch.random.fork_rng(), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        yield


def _trial(model: Superposed) -> Superposed:
    """A copy whose tasks have begun, and differ in all that they have for themselves."""
    made = copy.deepcopy(model)
    while len(made.tasks) < 2:
        made.add_task()
    made.begin(*made.tasks)
    for module in made.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    generator = torch.Generator().manual_seed(0)

    def noise(like: Tensor) -> Tensor:
        return torch.rand(like.shape, generator=generator).to(like.device, like.real.dtype)

    with torch.no_grad():
        for flats in made.private_state.flats.values():
            for flat in flats.own.values():
                if flats.kind in WRITTEN and flat.is_floating_point():
                    flat.mul_(1 + 0.2 * noise(flat))
                elif flat.is_floating_point() or flat.is_complex():
                    flat.add_(0.2 * (noise(flat) - 0.5))
        for layer in made.superposed_layers:
            for name in layer.bound:
                weight = layer.stored(name)
                if layer.base(name) is not None and weight.is_floating_point():
                    weight.add_((noise(weight) - 0.5) * weight[0].numel() ** -0.5)
    return made


def _tasks_of_rows(model: Superposed, tasks: Any, rows: int) -> list[int]:
    if tasks is not None:
        ids = model.superposition.ids(tasks)
        each = ids if isinstance(ids, list) else [ids] * rows
        if len(each) != rows:
            raise SuperposeError(f"tasks={tasks!r}: give one for each of the {rows} rows")
        return each
    some = max(2, min(MOST_TASKS, rows - 1))  # so that two rows have one task
    numbers = list(model.superposition.names.values())[:some]
    return (
        [numbers[(row * 3) % len(numbers)] for row in range(rows)]
        if len(numbers) > 3
        else [numbers[row % len(numbers)] for row in range(rows)]
    )


def _keeps_something(model: Superposed, each: list[int], batch: Batch) -> Iterator[str]:
    """Say if a task's outputs depend on which tasks ran before it, as those of a cache do."""
    together, different = _trial(model).eval(), False
    for task in dict.fromkeys(each):
        index = torch.tensor([row for row, own in enumerate(each) if own == task])
        fresh = _trial(model).eval()
        values = []
        for one in (together, fresh):
            inputs, options = batch.take(index)
            with torch.no_grad():
                values.append(flatten(one.run(one.view_of(task), *inputs, **options))[0])
        different |= any(_apart(a, b) > 0 for a, b in zip(*values, strict=True))
    if different:
        yield (
            "a task's outputs depend on which tasks ran before it: the network keeps something "
            "that it computed from a task's tensors (a cache of biases, a memory), and gives one "
            "task what another left there"
        )


def _is_random(model: Superposed, each: list[int], batch: Batch) -> bool:
    """Whether the same rows give other values when they are run again."""
    try:
        first, second = (_pass("grouped", model, each, batch)[0] for _ in range(2))
    except (RuntimeError, SuperposeError, ValueError, NotImplementedError, TypeError):
        return False  # the comparison tells why
    return any(_apart(a, b) > TOLERANCE for a, b in zip(first, second, strict=True))


def _compare(
    found: Checked, way: str, model: Superposed, each: list[int], batch: Batch, tolerance: float
) -> None:
    try:
        off = _off(way, model, each, batch)
        if off > tolerance:
            exact = _doubled(model)
            doubled = _off(way, exact, each, _doubled_batch(batch))
            if doubled <= 1e-8:
                found.notes.append(f"{way}: {off:.2g} off by rounding; {doubled:.1g} in float64")
                found.off[way] = off
                return
    except Exception as error:  # whatever a network says to rows where it does not expect them
        found.why[way] = (str(error) or type(error).__name__).splitlines()[0]
        return
    found.off[way] = off
    if not off <= tolerance:
        found.why[way] = f"it gives rows other values than they have alone, {off:.2g} off"


def _off(way: str, model: Superposed, each: list[int], batch: Batch) -> float:
    """The largest difference of values, gradients and statistics from those of the rows alone."""
    over_rows = any(
        isinstance(la, (BatchNorm, ComplexNorm)) and la.runs_by_task()
        for la in model.superposed_layers
    )
    reference = "grouped" if over_rows and way == "direct" else "alone"
    if over_rows and way == "grouped":
        _pass("grouped", model, each, batch)
        return 0.0  # rows of a task belong together: this is how it is defined
    wanted = _pass(reference, model, each, batch)
    values = _pass(way, model, each, batch)
    off = max((_apart(a, b) for a, b in zip(values[0], wanted[0], strict=True)), default=0.0)
    if model.training and way == "direct":
        wanted = _pass("grouped", model, each, batch)
        off = max([off, *(_apart(a, b) for a, b in zip(values[1], wanted[1], strict=True))])
    if not model.training and torch.is_grad_enabled():
        with torch.no_grad():  # fused passes, such as that of nn.TransformerEncoder
            off = max(off, _off(way, model, each, batch))
    return off


def _pass(
    way: str, model: Superposed, each: list[int], batch: Batch
) -> tuple[list[Tensor], list[Tensor]]:
    """Values and gradients of a pass, and the statistics that it left, on a copy."""
    trial = copy.deepcopy(model)
    inputs, options = batch.take(torch.arange(batch.rows))
    if way == "alone":
        rows, start = [], [(flat, flat.clone()) for flat in _statistics(trial)]
        for row, task in enumerate(each):
            own, named = batch.take(torch.tensor([row]))
            y = trial.run(trial.view_of(task), *own, **named)
            rows.append((flatten(y)[0], rows_in_returned(trial, y, 1)))
            for flat, before in start:  # rows of one batch do not see what others left
                flat.copy_(before)
        values = [
            column[0] if dim is None or not column[0].ndim else torch.cat(column, dim)
            for column, dim in zip(zip(*(y for y, _ in rows), strict=True), rows[0][1], strict=True)
        ]
    else:
        values = flatten(run_mixed(trial, each, way, inputs, options))[0]
    learned = [v for v in values if v.requires_grad]
    total = sum((v.abs() * _weights(v)).sum() for v in learned)
    if isinstance(total, Tensor):
        total.backward()
    gradients = [
        torch.zeros_like(p) if p.grad is None else p.grad
        for p in trial.parameters()
        if p.requires_grad
    ]
    return [*values, *gradients], _statistics(trial)


def _statistics(model: Superposed) -> list[Tensor]:
    every = model.private_state.flats.values()
    return [flat for flats in every if flats.kind in WRITTEN for flat in flats.own.values()]


def _weights(value: Tensor) -> Tensor:
    real = value.detach().abs()
    return torch.linspace(0.5, 1.5, value.numel(), dtype=real.dtype, device=real.device).view(
        value.shape
    )


def _doubled(model: Superposed) -> Superposed:
    return copy.deepcopy(model).double()


def _doubled_batch(batch: Batch) -> Batch:
    from dataclasses import replace

    return replace(
        batch, tensors=[t.double() if t.is_floating_point() else t for t in batch.tensors]
    )


def _apart(a: Tensor, b: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.detach().to(wide), b.detach().to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    scale = b.abs().nan_to_num(0, 0, 0).max().clamp_min(1e-6)
    return float(torch.where(same, 0.0, (a - b).abs()).nan_to_num(float("inf")).max() / scale)


def _time(found: Checked, model: Superposed, each: list[int], batch: Batch, rounds: int) -> None:
    """The median time of a pass without gradients, the ways in turn."""
    times: dict[str, list[float]] = {way: [] for way in found.off}
    for _ in range(rounds):
        for way, own in times.items():
            inputs, options = batch.take(torch.arange(batch.rows))
            start = time.perf_counter()
            with torch.no_grad():
                run_mixed(model, each, way, inputs, options)
            own.append(time.perf_counter() - start)
    found.seconds.update({way: sorted(own)[len(own) // 2] for way, own in times.items() if own})
