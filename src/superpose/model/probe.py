"""The way of a mixed batch, found out: what a network does with rows is not guessed.

The first batch of a kind is used. A few of its rows are run alone, and in each way, with private
tensors that differ from row to row; the first way that gives the values of the rows alone is kept
for batches of that kind. If rows change each other even under one task, there is no mixed batch,
and that is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from superpose.errors import SuperposeError
from superpose.model.batch import Batch
from superpose.model.lock import lock_of
from superpose.model.still import kept_by, still
from superpose.model.structure import flatten
from superpose.model.ways import Dims, Way, mapped, passed
from superpose.nn.additions import added_to
from superpose.nn.complex import ComplexBatchNorm
from superpose.nn.convert import AUTO, WAYS
from superpose.nn.flat import STATISTICS
from superpose.nn.layer import Layer
from superpose.nn.quantised import is_quantised
from superpose.nn.selection import Selected, Selection, of_row

if TYPE_CHECKING:
    from superpose.model.superposed import Superposed

PROBED = 3  # rows
MOST_KINDS = 256  # of batches that a model remembers the way of
NOT_FINITE = "the network gives nothing finite, so no quicker way can be checked"


def find(model: Superposed, batch: Batch, tasks: list[int], way: str) -> Way:
    """The way for batches of this kind: looked up, or found out with a few rows of this one."""
    found = model.superposition.ways.get((way, batch.kind, batch.coincides))
    if found is None:
        with lock_of(model).alone():
            found = _found_out(model, batch, tasks, way)
    return found


def _found_out(model: Superposed, batch: Batch, tasks: list[int], way: str) -> Way:
    known, key = model.superposition.ways, (way, batch.kind, batch.coincides)
    if key in known:  # by another thread, while this one waited
        return known[key]
    check_independent(model)
    ways = WAYS if way == AUTO else (way,)
    found = (_of_tokens if batch.tokens else _of_rows)(model, batch, tasks, ways)
    if found.why == NOT_FINITE:  # until it gives numbers that tell
        return found
    if len(known) >= MOST_KINDS:
        known.clear()
    known[key] = found
    return found


def forget(model: Superposed, batch: Batch, way: str) -> None:
    """Find out the way again when the next batch of this kind comes."""
    model.superposition.ways.pop((way, batch.kind, batch.coincides), None)


def check_independent(model: nn.Module) -> None:
    """That no norm takes statistics over rows, as far as the modules tell."""
    for name, module in model.named_modules():
        tracked = getattr(module, "running_mean", None) is not None
        batch = isinstance(module, (nn.modules.batchnorm._BatchNorm, ComplexBatchNorm))
        keeps = isinstance(module, nn.modules.instancenorm._InstanceNorm) and tracked
        own = isinstance(module, Layer) and any(
            part.kind == STATISTICS and added_to(module, name) is None
            for name, part in module.private.items()
        )
        if (batch and not tracked) or (module.training and (batch or keeps or own)):
            raise SuperposeError(
                f"layer {name!r} takes statistics over the rows of the batch, so rows of "
                "different tasks would change each other: call model.eval() (with running "
                "statistics), run each task by itself, or use a GroupNorm"
            )


def _of_rows(model: Superposed, batch: Batch, _: list[int], ways: tuple[str, ...]) -> Way:
    """Run a few rows alone and in each way; all of them, if the network does not take a few."""
    few = min(PROBED, batch.rows)
    try:
        return _of_some(model, batch, few, ways)
    except SuperposeError:
        raise
    except Exception:  # whatever a network does with a batch of another size
        if few == batch.rows:
            raise
        return _of_some(model, batch, batch.rows, ways)


def _of_some(model: Superposed, batch: Batch, count: int, ways: tuple[str, ...]) -> Way:
    numbers = list(model.superposition.names.values())[:PROBED]
    numbers += numbers[1:] if len(numbers) == 2 else []  # not the same from the other end
    tasks = [numbers[row % len(numbers)] for row in range(count)]
    places = _spread(batch.rows, count)
    compared = _spread(count, min(PROBED, count)).tolist()
    every = torch.arange(count)
    rounding = _rounding(model, batch)
    why: list[str] = []
    with still(model) as (generator, restore):
        by_row = _apart(model.selection_of(tasks), generator)
        some = batch.some(places, generator)

        def run(selection: Selection, rows: Tensor) -> list[Tensor]:
            restore()  # a cache of another row's is not this one's
            inputs, options = some.take(rows)
            return flatten(passed(model, selection, inputs, options))[0]

        first = of_row(by_row, 0)
        each = {row: run(of_row(by_row, row), every[row : row + 1]) for row in compared}
        together, last = run(first, every), run(first, every[-1:])
        dims = _row_dims(each[0], together, 1, count)
        if not _agree(together, dims, {0: each[0], count - 1: last}, rounding):
            raise SuperposeError(
                f"{type(model)._plain.__name__} gives a row other values when other rows are "
                "beside it (it computes over the rows, or draws random numbers of its own), so a "
                "batch cannot mix tasks: run each task by itself; if the rows are not in the first "
                "dimension of what it is given, say where with batch_dim"
            )
        if not _tells(each.values()):
            if "grouped" not in ways:
                raise SuperposeError(f"the way {ways[0]!r} was chosen, and {NOT_FINITE}")
            return Way("grouped", NOT_FINITE, dims)
        for way in ways:
            try:
                restore()
                if way == "direct":
                    values = run(by_row, every)
                elif way == "mapped":
                    values = _mapped_quickly(model, by_row, some, dims)
                else:  # one group comes after another
                    values = together
                    for row in compared:
                        given = some.take(every[row : row + 1])
                        own = flatten(passed(model, of_row(by_row, row), *given))[0]
                        if not _agree(own, dims, {0: each[row]}, rounding):
                            raise SuperposeError(
                                f"{type(model)._plain.__name__} keeps a result of one task and "
                                "uses it for another: clear that cache before each pass"
                            )
                if any(tensor.is_meta for tensor in values):
                    raise SuperposeError("the network returns a tensor that is each row's own")
                if way != "grouped" and not _agree(values, dims, each, rounding):
                    raise SuperposeError(_difference(values, each[0]))
                if way == "direct":  # a network may order rows by what is in them
                    turned = Selection(by_row.row, tree_map(lambda t: t.flip(0), by_row.layers))
                    back = {count - 1 - row: own for row, own in each.items()}
                    if not _agree(run(turned, every.flip(0)), dims, back, rounding):
                        raise SuperposeError("rows change places in it")
                return _checked(Way(way, "; ".join(why), dims), list(each.values()), rounding)
            except Exception as error:  # whatever a network does with rows where it has none
                why.append(f"not {way}: {_reason(error)}")
    if len(ways) == 1:
        raise SuperposeError(
            f"the way {ways[0]!r} was chosen, and it is not right: {why[0]}; "
            'model.mixed = "auto" takes one that is'
        )
    raise SuperposeError(f"a mixed batch of this network cannot be computed: {'; '.join(why)}")


def _spread(rows: int, count: int) -> Tensor:
    """So many of the rows, from the first to the last."""
    return torch.tensor([place * (rows - 1) // (count - 1) for place in range(count)])


def _of_tokens(model: Superposed, batch: Batch, tasks: list[int], ways: tuple[str, ...]) -> Way:
    """Run the tokens of a few tasks by themselves, and all of them at once."""
    unique = list(dict.fromkeys(tasks))
    slot = torch.tensor([unique.index(task) for task in tasks])
    places = [(slot == number).nonzero().flatten() for number in range(len(unique))]
    every = torch.arange(batch.rows)
    rounding = _rounding(model, batch)
    why = ""
    with still(model) as (generator, restore):
        by_task = _apart(model.selection_of(unique), generator)

        def run(selection: Selection, tokens: Tensor) -> list[Tensor]:
            restore()
            inputs, options = batch.take(tokens)
            return flatten(passed(model, selection, inputs, options))[0]

        together = run(of_row(by_task, 0), every)
        for index in places[:PROBED]:
            try:
                own = run(of_row(by_task, 0), index)
            except Exception as error:  # of a network that takes a fixed number of tokens
                raise SuperposeError(
                    f"{type(model)._plain.__name__} cannot be run with the tokens of one task "
                    f"alone ({_reason(error)}): give a task for each row"
                ) from error
            dims = _row_dims(own, together, len(index), batch.rows)
            if not _same_tokens(together, own, dims, index, rounding):
                raise SuperposeError(
                    "tokens of different tasks see each other, so each cannot have the outputs of "
                    "its own task: keep the texts of a packed row apart (models of transformers "
                    "tell them by position_ids that start anew), or give a task for each row"
                )
        if "direct" in ways:
            rows = tree_map(lambda t: t.index_select(0, slot.to(t.device)), by_task.layers)
            try:
                found = run(Selection(slot.unsqueeze(0), rows), every)
                if all(
                    _same_tokens(found, run(of_row(by_task, number), index), dims, index, rounding)
                    for number, index in enumerate(places[:PROBED])
                ):
                    return Way("direct", why, dims)
                why = "not direct: tokens meet in it"
            except Exception as error:  # whatever a network does with tokens where it has none
                why = f"not direct: {_reason(error)}"
    if "grouped" not in ways:
        raise SuperposeError(f"the way {ways[0]!r} was chosen, and it is not right: {why}")
    return Way("grouped", why, dims)


def _same_tokens(
    whole: list[Tensor], some: list[Tensor], dims: Dims, index: Tensor, rounding: float
) -> bool:
    return len(whole) == len(some) and all(
        dim is None or _close(a.index_select(dim, index.to(a.device)), b, rounding)
        for a, b, dim in zip(whole, some, dims, strict=True)
    )


def _reason(error: Exception) -> str:
    """An error in a few words."""
    text = str(error).strip().partition("\n")[0]
    if "meta" in text and not isinstance(error, SuperposeError):
        return "the network uses a tensor of a layer without calling the layer"
    return text if len(text) <= 300 else f"{text[:300]} …"


class _WithoutLoops:
    """While it is entered, `vmap` does not fall back on loops, which is said for all threads.

    Several threads may be inside. None of them waits for another: that one may wait for it, at the
    lock of a model.
    """

    def __init__(self) -> None:
        self._changing, self._inside, self._before = Lock(), 0, True

    def __enter__(self) -> None:
        functorch: Any = torch._C._functorch
        with self._changing:
            if not self._inside:
                self._before = functorch._is_vmap_fallback_enabled()
                functorch._set_vmap_fallback_enabled(False)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        functorch: Any = torch._C._functorch
        with self._changing:
            self._inside -= 1
            if not self._inside:
                functorch._set_vmap_fallback_enabled(self._before)


_without_loops = _WithoutLoops()


def _mapped_quickly(
    model: Superposed, selection: Selection, batch: Batch, dims: Dims
) -> list[Tensor]:
    """An error where an operation has no rule of its own, and would be run row by row."""
    functorch: Any = torch._C._functorch
    with _without_loops:
        found = flatten(mapped(model, selection, batch, dims))[0]
    if any(functorch.is_functorch_wrapped_tensor(tensor) for tensor in kept_by(model)):
        raise SuperposeError("the network keeps a tensor that depends on the row")
    return found


def _checked(found: Way, each: list[list[Tensor]], rounding: float) -> Way:
    """What a network returns without rows has to be the same for all of them, or of all at once."""
    for place, dim in enumerate(found.dims):
        own = [tensors[place] for tensors in each]
        if dim is not None or all(_close(own[0], x, rounding) for x in own[1:]):
            continue
        shape = tuple(own[0].shape)
        if found.name != "direct":
            raise SuperposeError(
                f"the network returns a tensor of shape {shape} for all rows, such as a loss, "
                f"which a mixed batch that is {found.name} cannot give: compute it from the outputs"
            )
        if shape:  # it is no loss
            raise SuperposeError(
                f"the network returns a tensor of shape {shape} for all rows: if they are not in "
                "the first dimension of what it is given, say where with batch_dim"
            )
    return found


def _apart(selection: Selection, generator: np.random.Generator) -> Selection:
    """With private tensors that differ from row to row, and nothing closed to any of them."""

    def apart(tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        noise = torch.tensor(generator.random(tensor.shape))
        return tensor + (0.1 + tensor.abs().mean()) * noise.to(tensor.device, tensor.dtype)

    def all_apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: apart(tensor) for name, tensor in tensors.items()}

    layers = {
        path: Selected(own.contexts, all_apart(own.private), all_apart(own.means))
        for path, own in selection.layers.items()
    }
    return Selection(selection.row, layers)


def _row_dims(some: list[Tensor], all_: list[Tensor], few: int, many: int) -> Dims:
    """Where the rows are in each tensor that is returned, by how its shape grows with them."""
    if len(some) != len(all_):
        raise SuperposeError(
            "the network returns another number of tensors for one row than for several"
        )
    dims: list[int | None] = []
    for a, b in zip(some, all_, strict=True):
        grown = [d for d in range(min(a.ndim, b.ndim)) if a.shape[d] != b.shape[d]]
        if a.ndim != b.ndim or len(grown) > 1:
            raise SuperposeError(
                f"the network returns {tuple(a.shape)} for {few} rows and {tuple(b.shape)} for "
                f"{many}: rows of different tasks cannot be told apart in it; run each task by "
                "itself"
            )
        if grown and (a.shape[grown[0]], b.shape[grown[0]]) != (few, many):
            raise SuperposeError(
                f"the network folds the rows into other dimensions: it returns {tuple(a.shape)} "
                f"for {few} rows and {tuple(b.shape)} for {many}; run each task by itself"
            )
        dims.append(grown[0] if grown else None)
    return tuple(dims)


def _tells(each: Iterable[list[Tensor]]) -> bool:
    """Whether there are numbers to compare: NaN in one way is NaN in the other."""
    values = [x for tensors in each for x in tensors if x.numel() and not x.is_meta]
    return not values or any(bool(x.isfinite().any()) for x in values)


def _agree(
    values: list[Tensor], dims: Dims, rows: dict[int, list[Tensor]], rounding: float
) -> bool:
    """Whether these rows have the values that they have alone."""
    return len(values) == len(dims) and all(
        _close(value.select(dim, row), alone[place].select(dim, 0), rounding)
        for row, alone in rows.items()
        for place, (value, dim) in enumerate(zip(values, dims, strict=True))
        if dim is not None
    )


def _difference(values: list[Tensor], alone: list[Tensor]) -> str:
    """Why a way does not give the values of rows alone."""
    for one, other in zip(values, alone, strict=False):
        if one.dtype != other.dtype:
            return f"it gives {one.dtype} where a row alone gives {other.dtype}, as under autocast"
    return "rows meet in it"


def _rounding(model: Superposed, batch: Batch) -> float:
    """How much of a value is rounding: by the least precise numbers in the network."""
    tensors = (*model.parameters(), *model.buffers(), *batch.tensors)
    kinds = {t.dtype for t in tensors if t.is_floating_point() or t.is_complex()}
    if any(map(is_quantised, tensors)):  # its inputs may be rounded to eight bits
        kinds.add(torch.bfloat16)
    for device in {t.device.type for t in tensors} - {"meta"}:
        if torch.is_autocast_enabled(device):
            kinds.add(torch.get_autocast_dtype(device))
    return max((torch.finfo(kind).eps for kind in kinds), default=0.0)


def _close(a: Tensor, b: Tensor, rounding: float) -> bool:
    """Equal but for rounding: rows in the wrong place differ by as much as the values are large.

    Values that are equal, such as those that are masked by -1e9, do not tell how large it may be.
    """
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if not a.is_floating_point() or not a.numel():
        return torch.equal(a, b)
    eps = max(rounding, torch.finfo(a.dtype).eps)
    slack = eps**0.5 * _size(b[a != b]) + 64 * eps * _size(b[(b > b.amin()) & (b < b.amax())])
    return torch.allclose(a, b, rtol=0, atol=slack, equal_nan=True)


def _size(values: Tensor) -> float:
    finite = values[values.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0
