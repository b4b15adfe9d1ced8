"""Methods of `transformers` models that a superposed one has in its own way."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.model.batch import Batch
from superpose.model.structure import flatten
from superpose.nn.view import Ids, viewing

_told_of_saving: WeakSet[nn.Module] = WeakSet()
"""Models that were told that `from_pretrained` cannot read them."""


def generating(plain: Any) -> Callable[..., Any]:
    """`generate` of transformers, with a task, or one for each row. One view serves all tokens.

    Rows of many tasks are generated task by task, and the texts padded to the longest, or, where
    mixed batches are direct, all at once. The beams and the samples of a row have its task.
    """
    of_its_own = "task" in inspect.signature(plain.generate).parameters  # Whisper's is another
    common = plain.generate.__module__ == "transformers.generation.utils"

    @functools.wraps(plain.generate)
    def generate(self: Any, *inputs: Any, **options: Any) -> Any:
        ids = self._ids(None if of_its_own else options.pop("task", None))
        if self.superposition.options.base:
            self._check_base(ids)

        def run(ids: Ids, inputs: Any, options: Any) -> Any:
            with torch.no_grad(), viewing(self.view_of(ids), self.superposition.home):
                return plain.generate(self, *inputs, **options)

        if isinstance(ids, int):
            return run(ids, inputs, options)
        batch = Batch.of(self, len(ids), (inputs, options))
        if len(set(ids)) == 1:
            return run(ids[0], inputs, options)
        each = _rows_each(self, inputs, options)
        encodes = getattr(self.config, "is_encoder_decoder", False)  # each row once, not each beam
        if common and self.mixed == "direct" and not (encodes and each > 1):
            return run([one for one in ids for _ in range(each)], inputs, options)
        places = {one: [row for row, own in enumerate(ids) if own == one] for one in ids}
        parts = [run(one, *batch.take(torch.tensor(rows))) for one, rows in places.items()]
        return _together(parts, list(places.values()), _padding(self, inputs, options))

    return generate


def _together(parts: list[Any], places: list[list[int]], padding: Any) -> Any:
    """What was generated for each task, in the order of the batch; texts padded to the longest."""
    order = torch.tensor([place for rows in places for place in rows]).argsort()
    columns = [flatten(part)[0] for part in parts]
    rebuild = flatten(parts[0])[2]
    try:
        whole = [_column(column, places, order, padding) for column in zip(*columns, strict=True)]
    except (
        ValueError
    ) as error:  # scores and hidden states of each token, of other numbers of tokens
        raise SuperposeError(
            "the tasks of the batch generated texts of different lengths, so what else generate "
            "returns (scores, hidden states, caches) is no one batch: leave out "
            "return_dict_in_generate, or generate for one task at a time"
        ) from error
    return rebuild(whole)


def _column(
    column: tuple[Tensor, ...], places: list[list[int]], order: Tensor, padding: Any
) -> Tensor:
    """One tensor of (rows · beams, …)."""
    if not all(t.ndim and len(t) % len(rows) == 0 for t, rows in zip(column, places, strict=True)):
        raise ValueError(f"no rows in {[tuple(t.shape) for t in column]}")
    grouped = [t.unflatten(0, (len(rows), -1)) for t, rows in zip(column, places, strict=True)]
    longest = max(t.shape[-1] for t in grouped)
    if grouped[0].ndim == 3 and not grouped[0].is_floating_point() and padding is not None:
        grouped = [
            torch.nn.functional.pad(t, (0, longest - t.shape[-1]), value=padding) for t in grouped
        ]
    if len({t.shape[1:] for t in grouped}) > 1:
        raise ValueError(f"different shapes, {[tuple(t.shape) for t in grouped]}")
    return torch.cat(grouped).index_select(0, order.to(grouped[0].device)).flatten(0, 1)


def _setting(model: Any, inputs: Any, options: Any, name: str) -> Any:
    """A setting of `generate`: an argument, or in the configuration, given or the model's."""
    given = options.get("generation_config", inputs[1] if len(inputs) > 1 else None)
    for value in (
        options.get(name),
        getattr(given, name, None),
        getattr(getattr(model, "generation_config", None), name, None),
    ):
        if value is not None:
            return value
    return None


def _rows_each(model: Any, inputs: Any, options: Any) -> int:
    """How many rows of a batch `generate` makes of each that it is given."""
    names = ("num_beams", "num_return_sequences")
    return max(int(_setting(model, inputs, options, name) or 1) for name in names)


def _padding(model: Any, inputs: Any, options: Any) -> Any:
    """The token that stands behind a text's end; None if `generate` gives no texts."""
    padding = _setting(model, inputs, options, "pad_token_id")
    if padding is None:
        padding = _setting(model, inputs, options, "eos_token_id")
    return padding[0] if isinstance(padding, (list, tuple)) else padding


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
