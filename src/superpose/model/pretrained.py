"""Methods of `transformers` models that a superposed one has in its own way."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from superpose.nn.view import viewing

_told_of_saving: WeakSet[nn.Module] = WeakSet()
"""Models that were told that `from_pretrained` cannot read them."""


def generating(plain: Any) -> Callable[..., Any]:
    """`generate` of transformers. A view that is one for all tokens is made once.

    With several beams, or texts, for each row, these have the task of their row. In a model with an
    encoder, which sees the rows once, all rows have to have one task then.
    """

    @functools.wraps(plain.generate)
    def generate(self: Any, *inputs: Any, task: Any = None, **options: Any) -> Any:
        ids = self._ids(task)
        if not isinstance(ids, int):
            ids = [one for one in ids for _ in range(_rows_each(self, options))]
            if self.mixed == "grouped":
                names = self.superposition
                with self.task([names.name_of(one) for one in ids]):
                    return plain.generate(self, *inputs, **options)
        with torch.no_grad(), viewing(self.view_of(ids), self.superposition.home):
            return plain.generate(self, *inputs, **options)

    return generate


def _rows_each(model: Any, options: dict[str, Any]) -> int:
    """How many rows of a batch `generate` makes of each that it is given."""
    config = options.get("generation_config") or model.generation_config
    counts = (
        options.get(n) or getattr(config, n, None) or 1
        for n in ("num_beams", "num_return_sequences")
    )
    return int(max(counts))


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
