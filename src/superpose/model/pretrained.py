"""Methods of `transformers` models that a superposed one has in its own way."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakSet

from torch import nn

_told_of_saving: WeakSet[nn.Module] = WeakSet()
"""Models that were told that `from_pretrained` cannot read them."""


def generating(plain: Any) -> Callable[..., Any]:
    """`generate` of transformers, whose encoder, if it has one, is told the task too."""

    @functools.wraps(plain.generate)
    def generate(self: Any, *inputs: Any, **options: Any) -> Any:
        task = options.get("task")
        with nullcontext() if task is None else self.task(task):
            return plain.generate(self, *inputs, **options)

    return generate


def saving(plain: Any) -> Callable[..., Any]:
    """`save_pretrained` of transformers: it writes what its trainer resumes from, with a warning.

    `from_pretrained` looks for the plain network's names, and takes W, the change, for the weights.
    """

    @functools.wraps(plain.save_pretrained)
    def save_pretrained(self: Any, *inputs: Any, **options: Any) -> Any:
        if self not in _told_of_saving:
            _told_of_saving.add(self)
            warnings.warn(
                "from_pretrained cannot read superposed weights: what save_pretrained writes of "
                f"{plain.__name__} is for a trainer to resume from; keep the model with "
                "sp.save(model, path), or one task with "
                "sp.unsuperpose(model, task).save_pretrained(…)",
                stacklevel=2,
            )
        return plain.save_pretrained(self, *inputs, **options)

    return save_pretrained
