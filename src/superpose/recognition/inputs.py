"""Inputs as evidence: how far a row is from what a layer usually sees in each task."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed, layers
from superpose.model.batch import Batch
from superpose.nn.additions import INPUT_SHAPES, MEAN, SEEN
from superpose.nn.centring import TASK
from superpose.nn.layer import Layer
from superpose.nn.observing import by_rows
from superpose.nn.selection import active
from superpose.nn.statistics import Usual, working
from superpose.recognition.evidence import Evidence, Judged

LEAST_ROWS = 2  # of one row there is no variance


class Inputs(Evidence):
    """log N(x; μ, Σ) of the inputs x of one layer, by the statistics that each task keeps of them.

    Where nothing but the means is kept, because layers are centred (`centre="task"`), it is −‖x −
    μ‖², and cannot tell a row that belongs to none of the tasks. The first layer of a network has
    the same inputs in all tasks, and nothing else is computed; a later one is run up to in each, or
    once, in the base, if that is what the statistics are of.
    """

    def judge(self, model: Superposed, batch: Batch, tasks: Tensor) -> Judged:
        """Find the statistics, and compare."""
        layer = keeping(model)
        if layer is None:
            raise SuperposeError(nothing_kept())
        sorts = tasks.unique()
        numbers = sorts.tolist()
        _check_seen(model, layer, numbers)
        reached = remembered_of(model, layer, numbers[0], batch)
        if reached.same_in_all_tasks:
            found = compare(layer, numbers, reached.x)
        else:
            one = (inputs_of(model, layer, number, batch).x for number in numbers)
            each = [compare(layer, [n], x) for n, x in zip(numbers, one, strict=True)]
            told = [judged.surprise for judged in each if judged.surprise is not None]
            scores = torch.cat([judged.scores for judged in each], 1)
            found = Judged(scores, torch.cat(told, 1) if told else None)
        place = torch.searchsorted(sorts, tasks.contiguous()).to(found.scores.device)
        surprise = None if found.surprise is None else found.surprise.gather(1, place)
        return Judged(found.scores.gather(1, place), surprise)


def keeping(model: Superposed) -> Layer | None:
    """The layer whose inputs tasks are recognised by: by statistics, else by means alone."""
    own = layers(model)
    by_statistics = (layer for layer in own if layer.input_statistics is not None)
    return next(by_statistics, None) or next((la for la in own if la.centre == TASK), None)


def rows_seen(layer: Layer, number: int) -> int:
    """How many rows the statistics of a task are made of; of means, how many batches."""
    if layer.input_statistics is not None:
        return int(layer.private["weight_input_rows"].of(number).sum())
    batches = int(layer.private["weight" + SEEN].of(number))
    return LEAST_ROWS * batches


def usual(layer: Layer, numbers: list[int]) -> Usual:
    """The statistics of several tasks."""
    group = layer.private["weight_input_rows"].group  # which has nothing else in it
    each = group.split(torch.stack([group.of(number) for number in numbers]))
    own = {part.name: tensor for part, tensor in zip(group.parts, each, strict=True)}
    return Usual.of(*(own["weight" + ending] for ending in INPUT_SHAPES))


def compare(layer: Layer, numbers: list[int], x: Tensor) -> Judged:
    """What the inputs (B, M) of a layer say of these tasks.

    Where classes are told apart, it is by the spread of all tasks together if the inputs are the
    same in all of them.
    """
    if layer.input_statistics is not None:
        known = usual(layer, numbers)
        squared, volume = known.distances(x)
        surprise = known.surprise(known.nearest(squared))
        if layer.input_statistics.classes and len(numbers) > 1:
            all_tasks = map(int, layer.private["weight_input_rows"].group.flats())
            every = [number for number in all_tasks if rows_seen(layer, number) >= LEAST_ROWS]
            around, _ = usual(layer, every).pooled().distances(x)
            places = torch.tensor([every.index(n) for n in numbers])
            squared = around.view(len(x), len(every), -1)[:, places.to(x.device)]
            volume = torch.zeros_like(volume)
        return Judged(known.likelihood(squared, volume), surprise)
    means = torch.stack([layer.private["weight" + MEAN].of(n) for n in numbers])
    means, x = means.to(working(means)), x.to(working(x))
    middle = means.mean(0)
    means, x = means - middle, x - middle
    return Judged(2 * x @ means.T - means.square().sum(1) - x.square().sum(1, keepdim=True))


class Reached(NamedTuple):
    """What a layer is given, a vector for each row (B, M), and whether it is so in all tasks."""

    x: Tensor
    same_in_all_tasks: bool


class _Enough(Exception):  # noqa: N818 (nothing went wrong)
    """The layer was reached: the rest of the network need not run."""


def remembered_of(model: Superposed, layer: Layer, number: int, batch: Batch) -> Reached:
    """What statistics of a layer are of: its inputs in a task, or in the base of all tasks."""
    kept = layer.input_statistics
    if kept is None or not kept.base:
        return inputs_of(model, layer, number, batch)
    return Reached(inputs_of(model, layer, None, batch).x, same_in_all_tasks=True)


def inputs_of(model: Superposed, layer: Layer, number: int | None, batch: Batch) -> Reached:
    """Run the rows, all of one task, or of none in the base, up to a layer."""
    found: list[Tensor] = []

    def take(module: Any, arguments: Any, named: dict[str, Any]) -> None:
        given = arguments[0] if arguments else next(iter(named.values()))
        found.append(by_rows(layer, layer.features_last(given)))
        raise _Enough

    handle = layer.register_forward_pre_hook(take, with_kwargs=True, prepend=True)
    inputs, options = batch.take(torch.arange(batch.rows))
    active.asked = asked = set[str]()
    try:
        if number is None:
            model.run(model.base_selection(), *inputs, **options)
        else:
            model(*inputs, task=names_of(model)[number], **options)
    except _Enough:
        pass
    except (RuntimeError, TypeError, IndexError) as error:
        raise SuperposeError(
            f"the network fails on what it was given ({error}): give a batch, its rows first"
        ) from error
    finally:
        active.asked = None
        handle.remove()
    if not found:
        raise SuperposeError(
            f"layer {layer.path!r}, whose inputs tasks are recognised by, was not reached by what "
            "was given: name another one, recognise='…'"
        )
    if len(found[0]) != batch.rows:
        raise SuperposeError(
            f"layer {layer.path!r} is given {len(found[0])} rows where the network is given "
            f"{batch.rows}: give a batch, its rows first, or keep statistics of another layer"
        )
    return Reached(found[0], not asked)


def nothing_kept() -> str:
    """How to get statistics."""
    return (
        "the model keeps nothing of the inputs of its tasks: call model.remember(x, task=…) with "
        "some inputs of each task, or superpose(…, recognise=True) before they are learned; "
        "evidence='outputs' goes by the outputs of a classifier alone"
    )


def _check_seen(model: Superposed, layer: Layer, numbers: list[int]) -> None:
    """Tasks of which nothing is known cannot be compared with others."""
    unseen = [number for number in numbers if rows_seen(layer, number) < LEAST_ROWS]
    if unseen:
        raise SuperposeError(
            f"nothing is known of the inputs of {told(model, unseen)}: call model.remember(x, "
            "task=…) with some of them, or leave tasks out, as in "
            "model.recognise(x, among=model.recognisable)"
        )


def told(model: Superposed, numbers: list[int]) -> str:
    """The names of tasks, the first few of them."""
    names = names_of(model)
    shown = ", ".join(repr(names[number]) for number in numbers[:5])
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    return ("task " if len(numbers) == 1 else "tasks ") + shown + more


def names_of(model: Superposed) -> dict[int, Name]:
    """What each task is called, by its number."""
    return {number: name for name, number in model.superposition.names.items()}
