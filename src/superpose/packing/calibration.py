"""Calibration inputs: rows of a network's input for each task, or noise in their place."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError, kind_of
from superpose.packing.sources import Sources

NOISE_ROWS = 4000  # per task, where there are no calibration inputs


@dataclass(frozen=True)
class Rows:
    """Inputs of a network, positional or by name, with the rows in dimension 0."""

    positional: tuple[Tensor, ...]
    named: dict[str, Tensor]

    @classmethod
    def of(cls, task: Any, inputs: Any) -> Rows:
        """From a tensor, several, or a mapping of them; or a function that returns one of these."""
        inputs = inputs() if callable(inputs) else inputs
        if isinstance(inputs, Mapping):
            rows = cls((), dict(inputs))
        else:
            rows = cls(tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,), {})
        tensors = [*rows.positional, *rows.named.values()]
        if not tensors or not all(isinstance(t, Tensor) and t.ndim for t in tensors):
            raise SuperposeError(
                f"the calibration of {task!r} is no tensor: give the network's inputs, rows "
                "first, and no labels"
            )
        if len({len(tensor) for tensor in tensors}) > 1 or not len(tensors[0]):
            raise SuperposeError(
                f"the calibration of {task!r} has tensors of {[len(t) for t in tensors]} rows: all "
                "of them need the same rows, at least one"
            )
        if any(t.is_floating_point() and not t.isfinite().all() for t in tensors):
            raise SuperposeError(f"the calibration of {task!r} holds numbers that are not finite")
        return rows

    def __len__(self) -> int:
        return len(next(iter((*self.positional, *self.named.values()))))

    def __getitem__(self, index: slice | Tensor) -> Rows:
        named = {name: tensor[index] for name, tensor in self.named.items()}
        return Rows(tuple(tensor[index] for tensor in self.positional), named)

    def split(self, size: int) -> Iterator[Rows]:
        """Batches of at most `size` rows."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def through(self, net: nn.Module, weights: Mapping[str, Tensor] | None = None) -> Any:
        """The network's output, with `weights` in place of its own tensors of these names."""
        calls = torch.func.functional_call
        try:
            return calls(net, dict(weights or {}), self.positional, self.named, tie_weights=False)
        except (RuntimeError, TypeError, IndexError) as error:
            count = len(self.positional)
            several, labels = (f"{count} ", " (labels are none)") if count > 1 else ("", "")
            raise SuperposeError(
                f"the network fails on the {several}inputs that it was given{labels}: {error}"
            ) from error


def logits(output: Any) -> Tensor:
    """The tensor of a network's output that is compared: itself, its `logits`, or the first."""
    if isinstance(output, Tensor):
        return output
    named = getattr(output, "logits", None)
    return named if isinstance(named, Tensor) else output[0]


def check_calibration(names: Iterable[Any], calibration: Any) -> None:
    """Refuse anything but a mapping with the inputs of each task, and of no other."""
    if not isinstance(calibration, Mapping):
        raise SuperposeError(
            f"calibration is {kind_of(calibration)}: give a mapping from names of models to their "
            "inputs, as in {'cats': inputs}"
        )
    names = list(names)
    missing = [name for name in names if name not in calibration]
    if missing:
        raise SuperposeError(
            f"there are no calibration inputs for {missing[0]!r}: every task needs its own"
        )
    unknown = [name for name in calibration if name not in names]
    if unknown:
        there = ", ".join(map(repr, names))
        raise SuperposeError(f"calibration: there is no model {unknown[0]!r}; there are {there}")


def noise(
    sources: Sources, seed: int, input_shape: tuple[int, ...] | None
) -> dict[Any, Callable[[], Tensor]]:
    """Gaussian inputs for each task, where there are no real ones."""
    warnings.warn(
        "packing without calibration inputs: the models are fitted on Gaussian noise, which is "
        "worse than on a few thousand unlabelled inputs of each task",
        stacklevel=3,
    )
    shape = input_shape or _input_shape(sources.first())

    def draw(number: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed + number)
        return torch.randn(NOISE_ROWS, *shape, generator=generator, device=generator.device)

    return {n: functools.partial(draw, number) for number, n in enumerate(sources.models)}


def _input_shape(net: nn.Module) -> tuple[int, ...]:
    for module in net.modules():
        if isinstance(module, nn.Linear):
            return (module.in_features,)
        if next(module.parameters(recurse=False), None) is not None:
            break  # the first layer is no linear one
    raise SuperposeError(
        f"{type(net).__name__} does not tell the shape of its inputs: give calibration inputs, or, "
        "to pack with noise, input_shape=(channels, height, width)"
    )
