"""Private tensors that a superposed layer has, and the plain layer has not.

They belong to a bound weight W (outputs, inputs) and have its name and one of these endings:

- `_context`: how far the numbers of a learned context are from those that were drawn;
- `_mean`, `_seen`: the running mean μ of the layer's inputs, and how many batches it is made of;
- `_down`, `_up`: the low-rank part B A of the task, A (rank, inputs) and B (outputs, rank);
- `_input_rows`, `_input_mean`, `_input_variance`, `_input_distance`, `_input_basis`: statistics of
  the layer's inputs (see `statistics.py`), which a task is recognised by;
- `_begun`: 1 when the task has begun to learn, and is no longer its base; the first layer has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from superpose import keys
from superpose.errors import SuperposeError
from superpose.keys import Key
from superpose.nn.statistics import Statistics

if TYPE_CHECKING:
    from superpose.nn.layer import Layer

CONTEXT, MEAN, SEEN, DOWN, UP = "_context", "_mean", "_seen", "_down", "_up"
BEGUN = "_begun"
INPUT_SHAPES: dict[str, Callable[[int, Statistics], tuple[int, ...]]] = {  # of M features
    "_input_rows": lambda features, kept: (kept.classes,) if kept.classes else (),
    "_input_mean": lambda features, kept: (kept.classes, features) if kept.classes else (features,),
    "_input_variance": lambda features, kept: (features,),
    "_input_distance": lambda features, kept: (2,),
    "_input_basis": lambda features, kept: (kept.rank, features),
}
ENDINGS = (CONTEXT, MEAN, SEEN, DOWN, UP, BEGUN, *INPUT_SHAPES)


def added_to(layer: Layer, name: str) -> tuple[str, str] | None:
    """The bound weight and the ending of an addition's name; None for the plain layer's tensors."""
    if name in layer._parameters or name in layer._buffers:
        return None
    for ending in ENDINGS:
        weight = name.removesuffix(ending)
        if weight != name and weight in layer.contexts:
            return weight, ending
    return None


def add(layer: Layer, weight: str, *endings: str) -> None:
    """Give each task additions to a weight, whose names the plain layer must not have."""
    names = [weight + ending for ending in endings]
    taken = next((name for name in names if hasattr(layer, name)), None)
    if taken is not None:
        raise SuperposeError(
            f"{layer.plain_class.__name__} {layer.path!r} already has {taken!r}, which each task "
            f"is to have beside {weight!r}: rename it, or name the layer in skip"
        )
    layer.make_private(names)


def add_rank(layer: Layer, rank: int) -> None:
    """Give each task a low-rank part of each weight, where that is less than the weight."""
    layer.rank = rank
    for name in layer.contexts:
        *_, outputs, inputs = layer.to_matrix(name, layer.stored(name)).shape
        if rank * (outputs + inputs) < outputs * inputs:
            add(layer, name, DOWN, UP)


def drawn_numbers(layer: Layer, name: str, task: int) -> Tensor | None:
    """What a learned context started from, by the name of its change; None for other names."""
    if not name.endswith(CONTEXT):
        return None
    weight = name.removesuffix(CONTEXT)
    return layer.contexts[weight].numbers(task).to(layer.real_like(weight))


def start(layer: Layer, weight: str, ending: str) -> Tensor:
    """What a task starts from: no change, no mean, and a low-rank part that gives nothing.

    A is drawn as PEFT draws it, uniformly within ±1/√inputs, the same for all tasks; B is zero.
    """
    like = layer.real_like(weight)
    if ending == CONTEXT:
        return _parameter(torch.zeros(layer.contexts[weight].numbers(0).shape), like)
    if ending == MEAN:
        return torch.zeros(layer.input_features(weight)).to(like)
    if ending in (SEEN, BEGUN):
        return torch.zeros(()).to(like)
    if ending in INPUT_SHAPES:
        kept = layer.input_statistics or Statistics()
        shape = INPUT_SHAPES[ending](layer.input_features(weight), kept)
        wide = like.dtype if like.dtype == torch.float64 else torch.float32  # it counts rows
        return torch.zeros(shape, dtype=wide, device=like.device)
    *lead, outputs, inputs = layer.to_matrix(weight, layer.stored(weight)).shape
    if ending == UP:
        return _parameter(torch.zeros(*lead, outputs, layer.rank), like)
    bound = layer.contexts[weight]
    drawn = _uniform(Key(bound.seed, f"{bound.layer}:down", 0), (*lead, layer.rank, inputs))
    return _parameter(drawn * (2 / inputs**0.5), like)


def _parameter(tensor: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.to(like))


@functools.lru_cache(maxsize=256)
def _uniform(key: Key, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [−½, ½)."""
    return torch.from_numpy(keys.phases(key, prod(shape))).view(shape)
