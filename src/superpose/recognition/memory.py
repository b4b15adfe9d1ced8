"""What tasks keep of their inputs, given by hand (`remember`), and tasks that see the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed, rows_of
from superpose.nn import (
    InputStatistics,
    Layer,
    Statistics,
    Usual,
    add_kind,
    as_statistics,
    recognition_layer,
)
from superpose.quiet import evaluating, quiet_run
from superpose.recognition.evidence import names_of
from superpose.recognition.finding import FARTHEST_TOGETHER
from superpose.recognition.inputs import (
    LEAST_ROWS,
    inputs_of,
    keeping,
    kept,
    nothing_kept,
    rows_seen,
    statistics_of,
    usual,
)

DRAWN = 256  # rows, to compare tasks by
AT_ONCE = 64  # rows, so that how far the next ones are is told by rows that were not seen yet


def keep(model: Superposed, recognise: bool | str | Statistics = True) -> None:
    """Let the tasks of a model keep statistics of their inputs, which know nothing yet."""
    wanted = as_statistics(recognise)
    if wanted is None:
        raise SuperposeError(f"recognise={recognise!r}: give True, a layer, or Statistics(…)")
    known, layers = model.superposition, model.superposed_layers
    if known.options.recognise is not None:
        raise SuperposeError(
            f"the model keeps {known.options.recognise} already: statistics are of one layer"
        )
    options = replace(known.options, recognise=wanted)
    path = recognition_layer(layers, options)
    model.check_layers()
    add_kind(layers, InputStatistics(path, wanted), model.private_state, known.names.values())
    known.options = options


def remember(
    model: Superposed,
    inputs: tuple[Any, ...],
    options: dict[str, Any],
    task: Name,
    classes: Any = None,
) -> None:
    """Add inputs to what a task keeps: `model.remember` calls this, and tells the options."""
    number = model.superposition.number(task)
    if model.superposition.options.recognise is None:
        keep(model)
    layer = _keeping_statistics(model)
    batch = rows_of(model, inputs, options)
    of_rows = _classes(layer, classes, batch.rows)
    with evaluating(model), quiet_run():
        x = inputs_of(model, layer, number, batch).x
    if not x.isfinite().all():
        raise SuperposeError(f"the inputs of task {task!r} hold numbers that are not finite")
    own = _usual(model, layer, number)
    for rows, some in zip(x.split(AT_ONCE), of_rows.to(x.device).split(AT_ONCE), strict=True):
        own.update(rows, some)


def _classes(layer: Layer, given: Any, rows: int) -> Tensor:
    """The class of each row; 0 where classes are not told apart."""
    wanted = statistics_of(layer)
    count = 0 if wanted is None else wanted.classes
    if not count:
        if given is not None:
            raise SuperposeError(
                "classes: the statistics do not tell classes apart: leave classes out, or keep "
                "them with recognise=superpose.nn.Statistics(…, classes=N)"
            )
        return torch.zeros(rows, dtype=torch.long)
    if given is None:
        raise SuperposeError(
            f"the statistics are of {count} classes: give that of each row, from 0 to {count - 1}, "
            "as in model.remember(x, task=…, classes=y)"
        )
    classes = torch.as_tensor(given)
    if classes.shape != (rows,) or classes.is_floating_point() or classes.dtype == torch.bool:
        raise SuperposeError(
            f"classes: give a whole number for each of the {rows} rows, not "
            f"{tuple(classes.shape)} of {classes.dtype}"
        )
    if rows and not 0 <= int(classes.min()) <= int(classes.max()) < count:
        raise SuperposeError(
            f"classes: {int(classes.min())} to {int(classes.max())} were given, and the statistics "
            f"are of {count}, from 0 to {count - 1}"
        )
    return classes.long()


def recognisable(model: Superposed) -> list[Name]:
    """The tasks of whose inputs something is known."""
    layer = keeping(model)
    if layer is None:
        return []
    names = names_of(model)
    rows = rows_seen(model, layer, list(names))
    return [name for name, seen in zip(names.values(), rows, strict=True) if seen >= LEAST_ROWS]


@torch.no_grad()
def duplicates(model: Superposed) -> list[tuple[Name, Name]]:
    """Pairs of tasks that see the same inputs, as far as their statistics tell; see `join`.

    Rows drawn from what one has seen are hardly farther from the other, and the other way round.
    """
    layer, tasks = _keeping_statistics(model), recognisable(model)
    if len(tasks) < 2:
        return []
    numbers = [model.superposition.names[task] for task in tasks]
    known = usual(model, layer, numbers)
    spread = known.distance[:, 1].sqrt()
    generator = torch.Generator().manual_seed(0)
    drawn = (_drawn(_usual(model, layer, number), generator) for number in numbers)
    logs = torch.stack([known.nearest(known.distances(x)[0]).log().mean(0) for x in drawn])
    # of rows of one task (first) in another (second)
    farther = (logs - logs.diagonal().unsqueeze(1)) / spread.clamp_min(1e-3)
    near = farther <= FARTHEST_TOGETHER
    return [
        (tasks[i], tasks[j])
        for i in range(len(tasks))
        for j in range(i + 1, len(tasks))
        if near[i, j] and near[j, i]
    ]


@torch.no_grad()
def join(model: Superposed, task: Name, other: Name) -> None:
    """Let one task stand for two that are the same: the other is removed, and its statistics added.

    The weights stay as they are, so the outputs of `task` do not change.
    """
    layer = _keeping_statistics(model)
    first, second = (model.superposition.number(name) for name in (task, other))
    if first == second:
        raise SuperposeError(f"{task!r} and {other!r} are one task: give two")
    if min(rows_seen(model, layer, [first, second])) < LEAST_ROWS:
        raise SuperposeError(f"nothing is known of the inputs of {task!r} or {other!r}")
    own, others = (_usual(model, layer, number) for number in (first, second))
    for tensor, new in zip(own, own.merged(others), strict=True):
        tensor.copy_(new)
    model.remove_task(other)


def _drawn(of: Usual, generator: torch.Generator) -> Tensor:
    """Rows of the Gaussians that the statistics of a task describe."""
    own = Usual(*(tensor.cpu() for tensor in of))
    rest = (own.variance - own.basis.square().sum(0)).clamp_min(0)
    apart = torch.randn(DRAWN, len(rest), generator=generator) * rest.sqrt()
    along = torch.randn(DRAWN, len(own.basis), generator=generator) @ own.basis
    mean = own.mean
    if len(mean) > 1:
        mean = mean[own.rows.multinomial(DRAWN, replacement=True, generator=generator)]
    return (mean + apart + along).to(of.mean.device)


def _usual(model: Superposed, layer: Layer, number: int) -> Usual:
    """The statistics of one task, which can be written to."""
    each = (kept(model, layer, ending, [number]) for ending in InputStatistics.endings)
    return Usual.of(*(tensor for (tensor,) in each))


def _keeping_statistics(model: Superposed) -> Layer:
    layer = keeping(model)
    if layer is None or statistics_of(layer) is None:
        raise SuperposeError(nothing_kept())
    return layer
