"""Inputs as evidence: how far a row is from what a layer usually sees in each task."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Batch, Superposed
from superpose.nn import (
    InputStatistics,
    Layer,
    LayerView,
    Statistics,
    TaskMean,
    Usual,
    View,
    by_rows,
)
from superpose.recognition.evidence import Evidence, Judged, listed

LEAST_ROWS = 2  # of one row there is no variance
WEIGHT = "weight"  # whose inputs are kept


class Inputs(Evidence):
    """log N(x; μ, Σ) of the inputs x of one layer, by the statistics that each task keeps of them.

    Where nothing but the means is kept, because layers are centred (`centre="task"`), it is −‖x −
    μ‖², and cannot tell a row that belongs to none of the tasks. The first layer of a network has
    the same inputs in all tasks, and nothing else is computed; a later one is run up to in each, or
    once, in the base, if that is what the statistics are of.
    """

    def judge(self, model: Superposed, batch: Batch, tasks: list[int]) -> Judged:
        """Run the rows up to the layer, and compare."""
        layer = keeping(model)
        if layer is None:
            raise SuperposeError(nothing_kept())
        rows = zip(tasks, rows_seen(model, layer, tasks), strict=True)
        unseen = [task for task, seen in rows if seen < LEAST_ROWS]
        if unseen:
            raise SuperposeError(
                f"nothing is known of the inputs of {listed(model, unseen)}: call model.remember(x,"
                " task=…) with some of them, or leave tasks out, as in "
                "model.recognise(x, among=model.recognisable)"
            )
        reached = inputs_of(model, layer, tasks[0], batch)
        if reached.same_in_all_tasks:
            return compare(model, layer, tasks, reached.x)
        others = [inputs_of(model, layer, task, batch).x for task in tasks[1:]]
        each = [
            compare(model, layer, [task], x)
            for task, x in zip(tasks, [reached.x, *others], strict=True)
        ]
        surprise = [judged.surprise for judged in each if judged.surprise is not None]
        scores = torch.cat([judged.scores for judged in each], 1)
        return Judged(scores, torch.cat(surprise, 1) if surprise else None)


def keeping(model: Superposed) -> Layer | None:
    """The layer whose inputs tasks are recognised by: by statistics, else by means alone."""
    kinds: tuple[type, ...] = (InputStatistics, TaskMean)
    for wanted in kinds:
        for layer in model.superposed_layers:
            if any(isinstance(kind, wanted) for kind, _ in layer.acts.note):
                return layer
    return None


def statistics_of(layer: Layer) -> Statistics | None:
    """Which statistics a layer keeps of its inputs; None if it keeps means alone."""
    kinds = (kind for kind, _ in layer.acts.note if isinstance(kind, InputStatistics))
    return next((kind.wanted for kind in kinds), None)


def kept(model: Superposed, layer: Layer, ending: str, tasks: list[int]) -> list[Tensor]:
    """What each of some tasks keeps of a layer's inputs under one name; it can be written to."""
    return model.private_state.each(layer.path, WEIGHT + ending, tasks)


def rows_seen(model: Superposed, layer: Layer, tasks: list[int]) -> list[int]:
    """How many rows the statistics of each task are made of; of means, two for each batch."""
    if statistics_of(layer) is None:
        return [LEAST_ROWS * int(n) for n in torch.stack(kept(model, layer, "_seen", tasks))]
    rows = torch.stack(kept(model, layer, InputStatistics.endings[0], tasks))
    found: list[int] = rows.view(len(tasks), -1).sum(1).long().tolist()
    return found


def usual(model: Superposed, layer: Layer, tasks: list[int]) -> Usual:
    """The statistics of several tasks."""
    endings = InputStatistics.endings
    return Usual.of(*(torch.stack(kept(model, layer, ending, tasks)) for ending in endings))


def compare(model: Superposed, layer: Layer, tasks: list[int], x: Tensor) -> Judged:
    """Compare the inputs (B, M) of a layer with what it usually sees in some tasks.

    Where classes are told apart, it is by the spread of all tasks together if the inputs are the
    same in all of them.
    """
    wanted = statistics_of(layer)
    if wanted is not None:
        known = usual(model, layer, tasks)
        squared, volume = known.distances(x)
        surprise = known.surprise(known.nearest(squared))
        if wanted.classes and len(tasks) > 1:
            numbers = list(model.superposition.names.values())
            rows = zip(numbers, rows_seen(model, layer, numbers), strict=True)
            every = [number for number, seen in rows if seen >= LEAST_ROWS]
            around, _ = usual(model, layer, every).pooled().distances(x)
            places = torch.tensor([every.index(n) for n in tasks])
            squared = around.view(len(x), len(every), -1)[:, places.to(x.device)]
            volume = torch.zeros_like(volume)
        return Judged(known.likelihood(squared, volume), surprise)
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    means, x = torch.stack(kept(model, layer, "_mean", tasks)).to(wide), x.to(wide)
    middle = means.mean(0)
    means, x = means - middle, x - middle
    return Judged(2 * x @ means.T - means.square().sum(1) - x.square().sum(1, keepdim=True))


class Reached(NamedTuple):
    """What a layer is given, a vector for each row (B, M), and whether it is so in all tasks."""

    x: Tensor
    same_in_all_tasks: bool


class _Enough(Exception):  # noqa: N818 (nothing went wrong)
    """The layer was reached: the rest of the network need not run."""


class _Asked(dict[str, LayerView]):
    """The views of layers, and whether one of them was asked for."""

    any = False

    def __getitem__(self, path: str) -> LayerView:
        self.any = True
        return super().__getitem__(path)

    def get(self, path: str, default: Any = None) -> Any:
        self.any = True
        return super().get(path, default)


def inputs_of(model: Superposed, layer: Layer, task: int, batch: Batch) -> Reached:
    """Run rows up to the layer whose inputs are kept: in a task, or in the base of all tasks."""
    found: list[Tensor] = []

    def take(module: Any, arguments: Any, named: dict[str, Any]) -> None:
        given = arguments[0] if arguments else next(iter(named.values()))
        found.append(by_rows(layer, layer.features_last(given)))
        raise _Enough

    wanted = statistics_of(layer)
    of_base = wanted is not None and wanted.base
    view = model.base_view() if of_base else model.view_of(task)
    asked = _Asked(view.layers)
    inputs, options = batch.take(torch.arange(batch.rows))
    handle = layer.register_forward_pre_hook(take, with_kwargs=True, prepend=True)
    try:
        if not layer.path:  # a network that is one layer runs without hooks
            take(layer, inputs, options)
        model.run(View(asked), *inputs, **options)
    except _Enough:
        pass
    except (RuntimeError, TypeError, IndexError) as error:
        raise SuperposeError(
            f"the network fails on what it was given ({error}): give a batch, its rows first"
        ) from error
    finally:
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
    return Reached(found[0], of_base or not asked.any)


def nothing_kept() -> str:
    """How to get statistics."""
    return (
        "the model keeps nothing of the inputs of its tasks: call model.remember(x, task=…) with "
        "some inputs of each task, or superpose(…, recognise=True) before they are learned; "
        "evidence='outputs' goes by the outputs of a classifier alone"
    )
