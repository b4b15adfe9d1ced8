"""What tasks keep of their inputs, told by hand: `remember`; and tasks that see the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed, layers, private_state
from superpose.nn.convert import add_statistics
from superpose.nn.layer import Layer
from superpose.nn.statistics import Statistics, Usual, as_statistics
from superpose.pack.inputs import evaluating, quiet_run
from superpose.recognition.evidence import as_batch
from superpose.recognition.inputs import (
    LEAST_ROWS,
    inputs_of,
    keeping,
    names_of,
    rows_seen,
    usual,
)

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
    parts = add_statistics({layer.path: layer for layer in layers(model)}, wanted)
    conversion = replace(model.superposition.conversion, recognise=wanted)
    model.superposition.conversion = conversion
    private_state(model).extend(parts, model.superposition.names.values())


def remember(
    model: Superposed, inputs: tuple[Any, ...], options: dict[str, Any], task: Name
) -> None:
    """What `model.remember` does."""
    number = model.superposition.number(task)
    if model.superposition.conversion.recognise is None:
        keep(model)
    layer = _kept(model)
    batch = as_batch(model, inputs, options)
    with evaluating(model), quiet_run():
        x = inputs_of(model, layer, number, batch).x
    if not x.isfinite().all():
        raise SuperposeError(f"the inputs of task {task!r} hold numbers that are not finite")
    own = Usual(*(tensor[0] for tensor in usual(layer, [number])))
    for rows in x.split(AT_ONCE):
        own.update(rows)
    _write(layer, number, own)


def recognisable(model: Superposed) -> list[Name]:
    """The tasks of whose inputs something is known."""
    layer = keeping(model)
    if layer is None:
        return []
    names = names_of(model)
    return [name for number, name in names.items() if rows_seen(layer, number) >= LEAST_ROWS]


@torch.no_grad()
def _write(layer: Layer, number: int, own: Usual) -> None:
    for name, tensor in own._asdict().items():
        layer.private[f"weight_input_{name}"].of(number).copy_(tensor)


def _kept(model: Superposed) -> Layer:
    """The layer that statistics are kept of."""
    return next(layer for layer in layers(model) if layer.input_statistics is not None)
