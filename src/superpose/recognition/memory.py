"""What tasks keep of their inputs, told by hand: `remember`; and tasks that see the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed, layers, private_state
from superpose.nn.convert import add_statistics
from superpose.nn.layer import Layer
from superpose.nn.statistics import Statistics, Usual, as_statistics, joined
from superpose.packing.inputs import evaluating, quiet_run
from superpose.recognition.evidence import as_batch
from superpose.recognition.finding import FARTHEST_TOGETHER
from superpose.recognition.inputs import (
    LEAST_ROWS,
    keeping,
    names_of,
    nothing_kept,
    remembered_of,
    rows_seen,
    usual,
)

DRAWN = 256  # rows, to compare tasks by
AT_ONCE = 64  # rows, so that how far the next ones are is told by rows that were not seen yet


def keep(model: Superposed, recognise: bool | str | Statistics = True) -> None:
    """Let the tasks of a model keep statistics of their inputs, which know nothing yet."""
    wanted = as_statistics(recognise)
    if wanted is None:
        raise SuperposeError(f"recognise={recognise!r}: give True, a layer, or Statistics(…)")
    if model.superposition.conversion.recognise is not None:
        raise SuperposeError(
            f"the model keeps {model.superposition.conversion.recognise} already: statistics are "
            "of one layer"
        )
    own = {layer.path: layer for layer in layers(model)}
    parts = add_statistics(own, wanted, model.superposition.conversion.base)
    conversion = replace(model.superposition.conversion, recognise=wanted)
    model.superposition.conversion = conversion
    private_state(model).extend(parts, model.superposition.names.values())


def remember(
    model: Superposed,
    inputs: tuple[Any, ...],
    options: dict[str, Any],
    task: Name,
    classes: Any = None,
) -> None:
    """What `model.remember` does."""
    number = model.superposition.number(task)
    if model.superposition.conversion.recognise is None:
        keep(model)
    layer = _kept(model)
    batch = as_batch(model, inputs, options)
    told = _classes(layer, classes, batch.rows)
    with evaluating(model), quiet_run():
        x = remembered_of(model, layer, number, batch).x
    if not x.isfinite().all():
        raise SuperposeError(f"the inputs of task {task!r} hold numbers that are not finite")
    own = Usual(*(tensor[0] for tensor in usual(layer, [number])))
    for rows, of_rows in zip(x.split(AT_ONCE), told.to(x.device).split(AT_ONCE), strict=True):
        own.update(rows, of_rows)
    _write(layer, number, own)


def _classes(layer: Layer, told: Any, rows: int) -> Tensor:
    """The class of each row; 0 where classes are not told apart."""
    kept = layer.input_statistics
    count = 0 if kept is None else kept.classes
    if not count:
        if told is not None:
            raise SuperposeError(
                "classes: the statistics do not tell classes apart: leave classes out, or keep "
                "them with recognise=superpose.nn.Statistics(…, classes=N)"
            )
        return torch.zeros(rows, dtype=torch.long)
    if told is None:
        raise SuperposeError(
            f"the statistics are of {count} classes: give that of each row, from 0 to {count - 1}, "
            "as in model.remember(x, task=…, classes=y)"
        )
    classes = torch.as_tensor(told)
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
    return [name for number, name in names.items() if rows_seen(layer, number) >= LEAST_ROWS]


@torch.no_grad()
def duplicates(model: Superposed) -> list[tuple[Name, Name]]:
    """Pairs of tasks that see the same inputs, as far as their statistics tell; see `join`.

    Rows drawn from what one has seen are hardly farther from the other, and the other way round.
    """
    layer = _kept(model)
    names = names_of(model)
    numbers = [number for number in names if rows_seen(layer, number) >= LEAST_ROWS]
    if len(numbers) < 2:
        return []
    known = usual(layer, numbers)
    spread = known.distance[:, 1].sqrt()
    generator = torch.Generator().manual_seed(0)
    logs = torch.stack(  # of rows of one task (first) in another (second)
        [
            known.nearest(known.distances(_drawn(layer, n, generator))[0]).log().mean(0)
            for n in numbers
        ]
    )
    farther = (logs - logs.diagonal().unsqueeze(1)) / spread.clamp_min(1e-3)
    near = farther <= FARTHEST_TOGETHER
    return [
        (names[numbers[i]], names[numbers[j]])
        for i in range(len(numbers))
        for j in range(i + 1, len(numbers))
        if near[i, j] and near[j, i]
    ]


@torch.no_grad()
def join(model: Superposed, kept: Name, other: Name) -> None:
    """Let one task stand for two that are the same: the other is removed, its inputs are kept's.

    The weights stay as they are, so the outputs of `kept` do not change.
    """
    layer = _kept(model)
    first, second = (model.superposition.number(task) for task in (kept, other))
    if first == second:
        raise SuperposeError(f"{kept!r} and {other!r} are one task: give two")
    both = [Usual(*(t[0] for t in usual(layer, [number]))) for number in (first, second)]
    if min(int(one.rows.sum()) for one in both) < LEAST_ROWS:
        raise SuperposeError(f"nothing is known of the inputs of {kept!r} or {other!r}")
    _write(layer, first, joined(*both))
    model.remove_task(other)


def _drawn(layer: Layer, number: int, generator: torch.Generator) -> Tensor:
    """Rows of the Gaussians that the statistics of a task describe."""
    own = Usual(*(tensor[0].cpu() for tensor in usual(layer, [number])))
    rest = (own.variance - own.basis.square().sum(0)).clamp_min(0)
    apart = torch.randn(DRAWN, len(rest), generator=generator) * rest.sqrt()
    along = torch.randn(DRAWN, len(own.basis), generator=generator) @ own.basis
    mean = own.mean
    if len(mean) > 1:
        mean = mean[own.rows.multinomial(DRAWN, replacement=True, generator=generator)]
    return (mean + apart + along).to(layer.real_like("weight").device)


@torch.no_grad()
def _write(layer: Layer, number: int, own: Usual) -> None:
    for name, tensor in own._asdict().items():
        kept = layer.private[f"weight_input_{name}"].of(number)
        kept.copy_(tensor.view_as(kept))


def _kept(model: Superposed) -> Layer:
    """The layer that statistics are kept of."""
    kept = next((layer for layer in layers(model) if layer.input_statistics is not None), None)
    if kept is None:
        raise SuperposeError(nothing_kept())
    return kept
