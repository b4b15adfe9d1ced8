"""Mixed batches: each row run alone under its own task, computed in the quickest way known right.

- *direct*: one pass, in which every layer binds each row by its own context;
- *mapped*: `torch.vmap` of the pass of one row, over the rows and what their tasks have;
- *grouped*: one pass for each task of the batch, the rows put back in order.

Which ways are right depends on what the network does with the rows, which is not guessed: the first
batch of a kind is used to find out. A few of its rows are run alone, and in each way, with tensors
that differ from task to task; the first way that gives the same values is kept for batches of that
kind. If rows change each other even under one task, there is no mixed batch, and that is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from superpose.errors import SuperposeError
from superpose.model.structure import PLAIN, Rebuild, flatten
from superpose.nn.complex import ComplexBatchNorm
from superpose.nn.layer import Layer
from superpose.nn.private import STATISTICS
from superpose.nn.selection import Selected, Selection

if TYPE_CHECKING:
    from superpose.model.superposed import Superposed

WAYS = ("direct", "mapped", "grouped")
AUTO = "auto"
PROBED_ROWS = 3
MOST_KINDS = 256  # of batches that a model remembers the way of

BatchDim = int | None | Mapping[str, int | None]
Dims = tuple[int | None, ...]


@dataclass(frozen=True)
class Found:
    """The way for batches of one kind, and where the rows are in each tensor that is returned."""

    way: str
    why: str  # no quicker way is right
    dims: Dims

    def __str__(self) -> str:
        return f"{self.way} ({self.why})" if self.why else self.way


@dataclass(frozen=True)
class Batch:
    """What a network is given for rows of different tasks, and where each tensor has its rows."""

    tensors: list[Tensor]
    dims: list[tuple[int, ...]]  # one for rows; a mask of tokens may have two
    rebuild: Rebuild
    rows: int
    tokens: bool
    has_objects: bool  # such as caches, which a pass writes to
    kind: Any

    @classmethod
    def of(cls, model: Superposed, rows: int, tokens: bool, given: Any) -> Batch:
        """Rows are where `batch_dim` says; a tensor of one row, or of none, is for all of them."""
        tensors, rest, rebuild = flatten(given)
        where = model.superposition.conversion.batch_dim
        declared = _declared(type(model)._plain, where, given, len(tensors))
        if tokens:
            dims = [_tokens_in(t, rows) for t in tensors]
        else:
            dims = [_rows_in(t, dim, rows) for t, dim in zip(tensors, declared, strict=True)]
        if tensors and not any(dims):
            raise _without_rows(rows, tensors[0])
        shapes = tuple(
            (dim, t.dtype, tuple(bool(size == 1) for size in t.shape))
            for t, dim in zip(tensors, dims, strict=True)
        )
        plain = tuple(x if isinstance(x, (bool, int, str)) else type(x) for x in rest)
        objects = any(not isinstance(x, PLAIN) for x in rest)
        kind = (tokens, model.training, shapes, plain)
        return cls(tensors, dims, rebuild, rows, tokens, objects, kind)

    def take(self, index: Tensor) -> tuple[Any, Any]:
        """Inputs and options of some of the rows."""
        inputs, options = self.rebuild([_taken(*pair, index) for pair in self.pairs()])
        return inputs, options

    def pairs(self) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
        """Each tensor, and where its rows are."""
        return zip(self.tensors, self.dims, strict=True)

    def some(self, places: Tensor, generator: torch.Generator) -> Batch:
        """A batch of a few rows, which differ from each other and are finite."""

        def varied(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point() or not tensor.numel():
                return tensor
            if tensor.isfinite().all() and tensor.amin() != tensor.amax():
                return tensor
            noise = torch.randn(tensor.shape, generator=generator, device=generator.device)
            return noise.to(tensor.device, tensor.dtype)

        few = [varied(_taken(t, dim, places)) if dim else t for t, dim in self.pairs()]
        return replace(self, tensors=few, rows=len(places))


def _taken(tensor: Tensor, dims: tuple[int, ...], index: Tensor) -> Tensor:
    for dim in dims:
        tensor = tensor.index_select(dim, index.to(tensor.device))
    return tensor


def _declared(plain: Any, where: BatchDim, given: Any, count: int) -> list[int | None]:
    """Where the rows of each tensor are said to be."""
    if not isinstance(where, Mapping):
        return [where or 0] * count
    inputs, options = given
    names = list(inspect.signature(plain.forward).parameters)[1:]
    last = len(names) - 1  # which may stand for several
    named = [(names[min(place, last)], value) for place, value in enumerate(inputs)]
    dims: list[int | None] = []
    for name, value in [*named, *options.items()]:
        dims += [where.get(name, 0)] * len(flatten(value)[0])
    return dims


def _rows_in(tensor: Tensor, dim: int | None, rows: int) -> tuple[int, ...]:
    """The dimension of the rows; none if the tensor is for all of them."""
    if dim is None or tensor.ndim <= dim or (tensor.shape[dim] == 1 and rows != 1):
        return ()
    if tensor.shape[dim] != rows:
        raise _without_rows(rows, tensor)
    return (dim,)


def _tokens_in(tensor: Tensor, tokens: int) -> tuple[int, ...]:
    """The dimensions of the tokens: whether that was right is seen when the passes are compared."""
    return tuple(dim for dim, size in enumerate(tensor.shape) if size == tokens)


def _without_rows(rows: int, tensor: Tensor) -> SuperposeError:
    return SuperposeError(
        f"there are {rows} tasks, one for each row, but an input has the shape "
        f"{tuple(tensor.shape)}: give a task for each row, or one for all; if its rows are not in "
        "its first dimension, or it has none, say so when superposing, as in batch_dim=1 or "
        "batch_dim={'mask': None}"
    )


def check_independent(model: nn.Module) -> None:
    """That no norm takes statistics over rows, as far as the modules tell."""
    for name, module in model.named_modules():
        tracked = getattr(module, "running_mean", None) is not None
        batch = isinstance(module, (nn.modules.batchnorm._BatchNorm, ComplexBatchNorm))
        keeps = isinstance(module, nn.modules.instancenorm._InstanceNorm) and tracked
        own = isinstance(module, Layer) and any(
            part.kind == STATISTICS for part in module.private.values()
        )
        if (batch and not tracked) or (module.training and (batch or keeps or own)):
            raise SuperposeError(
                f"layer {name!r} takes statistics over the rows of the batch, so rows of "
                "different tasks would change each other: call model.eval() (with running "
                "statistics), run each task by itself, or use a GroupNorm"
            )


def find(model: Superposed, batch: Batch, tasks: list[int], way: str) -> Found:
    """The way for batches of this kind: looked up, or found out with a few rows of this one."""
    known = model.superposition.ways
    found = known.get((way, batch.kind))
    if found is None:
        check_independent(model)
        ways = WAYS if way == AUTO else (way,)
        with _lock:
            found = (_of_tokens if batch.tokens else _of_rows)(model, batch, tasks, ways)
        if len(known) >= MOST_KINDS:
            known.clear()
        known[way, batch.kind] = found
    return found


_lock = RLock()


def mapped(model: Superposed, selection: Selection, batch: Batch, dims: Dims) -> Any:
    """The pass of one row, mapped over the rows and over what their tasks have."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # not when superpose is imported

    rebuild: list[Rebuild] = []

    def of_row(layers: Any, *row: Tensor) -> tuple[Tensor, ...]:
        own = iter(row)
        inputs, options = batch.rebuild(
            [next(own).unsqueeze(dims[0]) if dims else t for t, dims in batch.pairs()]
        )
        found, _, again = flatten(model.pass_of(Selection(None, layers), inputs, options))
        rebuild.append(again)
        return tuple(t if d is None else t.squeeze(d) for t, d in zip(found, dims, strict=True))

    rows = [(t, dims[0]) for t, dims in batch.pairs() if dims]
    over_rows = torch.vmap(
        of_row,
        in_dims=(0, *(dim for _, dim in rows)),
        out_dims=tuple(dim or 0 for dim in dims),
        randomness="different",
    )
    with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for it
        found = over_rows(selection.layers, *(t for t, _ in rows))
    pairs = zip(found, dims, strict=True)
    return rebuild[-1]([t[0] if dim is None else t for t, dim in pairs])


def grouped(model: Superposed, tasks: list[int], batch: Batch, dims: Dims) -> Any:
    """One pass for each task, its rows put back where they were."""
    places: dict[int, list[int]] = {}
    for place, task in enumerate(tasks):
        places.setdefault(task, []).append(place)
    parts: list[list[Tensor]] = []
    for task, rows in places.items():
        inputs, options = batch.take(torch.tensor(rows))
        found, _, rebuild = flatten(model.pass_of(model.selection_of(task), inputs, options))
        parts.append(found)
    order = torch.tensor([place for rows in places.values() for place in rows]).argsort()
    whole = []
    for tensors, dim in zip(zip(*parts, strict=True), dims, strict=True):
        index = order.to(tensors[0].device)
        joined = tensors[0] if dim is None else torch.cat(tensors, dim).index_select(dim, index)
        whole.append(joined)
    return rebuild(whole)


def _of_rows(model: Superposed, batch: Batch, _: list[int], ways: tuple[str, ...]) -> Found:
    """Run a few rows alone and in each way."""
    count = min(PROBED_ROWS, batch.rows)
    numbers = list(model.superposition.names.values())[:count]
    tasks = [numbers[row % len(numbers)] for row in range(count)]
    places = torch.tensor([row * (batch.rows - 1) // (count - 1) for row in range(count)])
    every = torch.arange(count)
    why: list[str] = []
    with _undisturbed(model) as generator:
        by_row = _apart(model.selection_of(tasks), generator)
        some = batch.some(places, generator)

        def run(selection: Selection, rows: Tensor) -> list[Tensor]:
            inputs, options = some.take(rows)
            return flatten(model.pass_of(selection, inputs, options))[0]

        first = _one_of(by_row, 0)
        each = [run(_one_of(by_row, row), every[row : row + 1]) for row in range(count)]
        together, last = run(first, every), run(first, every[-1:])
        dims = _row_dims(each[0], together, 1, count)
        if not _agree(together, dims, {0: each[0], count - 1: last}):
            raise SuperposeError(
                f"{type(model)._plain.__name__} gives a row other values when other rows are "
                "beside it (it computes over the rows, or draws random numbers of its own), so a "
                "batch cannot mix tasks: run each task by itself"
            )
        for way in ways:
            if way == "grouped":
                break
            try:
                direct = way == "direct"
                values = (
                    run(by_row, every) if direct else _mapped_quickly(model, by_row, some, dims)
                )
                if _agree(values, dims, dict(enumerate(each))):
                    return _checked(Found(way, "; ".join(why), dims), each)
                why.append(f"not {way}: rows meet in it")
            except Exception as error:  # whatever a network does with rows where it has none
                why.append(f"not {way}: {_reason(error)}")
    if "grouped" not in ways:
        raise SuperposeError(f"the way {ways[0]!r} was chosen, and it is not right: {why[0]}")
    return _checked(Found("grouped", "; ".join(why), dims), each)


def _of_tokens(model: Superposed, batch: Batch, tasks: list[int], ways: tuple[str, ...]) -> Found:
    """Run the tokens of a few tasks by themselves, and all of them at once."""
    unique = list(dict.fromkeys(tasks))
    slot = torch.tensor([unique.index(task) for task in tasks])
    places = [(slot == number).nonzero().flatten() for number in range(len(unique))]
    every = torch.arange(batch.rows)
    why = ""
    with _undisturbed(model) as generator:
        by_task = _apart(model.selection_of(unique), generator)

        def run(selection: Selection, tokens: Tensor) -> list[Tensor]:
            inputs, options = batch.take(tokens)
            return flatten(model.pass_of(selection, inputs, options))[0]

        together = run(_one_of(by_task, 0), every)
        for index in places[:PROBED_ROWS]:
            own = run(_one_of(by_task, 0), index)
            dims = _row_dims(own, together, len(index), batch.rows)
            if not _same_tokens(together, own, dims, index):
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
                    _same_tokens(found, run(_one_of(by_task, number), index), dims, index)
                    for number, index in enumerate(places[:PROBED_ROWS])
                ):
                    return Found("direct", why, dims)
                why = "not direct: tokens meet in it"
            except Exception as error:  # whatever a network does with tokens where it has none
                why = f"not direct: {_reason(error)}"
    if "grouped" not in ways:
        raise SuperposeError(f"the way {ways[0]!r} was chosen, and it is not right: {why}")
    return Found("grouped", why, dims)


def _same_tokens(whole: list[Tensor], some: list[Tensor], dims: Dims, index: Tensor) -> bool:
    return len(whole) == len(some) and all(
        dim is None or _close(a.index_select(dim, index.to(a.device)), b)
        for a, b, dim in zip(whole, some, dims, strict=True)
    )


def _reason(error: Exception) -> str:
    """An error in a few words."""
    text = str(error).strip().partition("\n")[0]
    if "meta" in text and not isinstance(error, SuperposeError):
        return "the network uses a tensor of a layer without calling the layer"
    return text[:200]


def _mapped_quickly(
    model: Superposed, selection: Selection, batch: Batch, dims: Dims
) -> list[Tensor]:
    """An error where an operation has no rule of its own, and would be run row by row."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        found = flatten(mapped(model, selection, batch, dims))[0]
    finally:
        functorch._set_vmap_fallback_enabled(before)
    kept = (value for module in model.modules() for value in vars(module).values())
    if any(isinstance(x, Tensor) and functorch.is_functorch_wrapped_tensor(x) for x in kept):
        raise SuperposeError("the network keeps a tensor that depends on the row")
    return found


def _checked(found: Found, each: list[list[Tensor]]) -> Found:
    """What a network returns without rows has to be the same for all of them, or of all at once."""
    for place, dim in enumerate(found.dims):
        own = [tensors[place] for tensors in each]
        if found.way != "direct" and dim is None and not all(_close(own[0], x) for x in own[1:]):
            raise SuperposeError(
                f"the network returns a tensor of shape {tuple(own[0].shape)} for all rows, such "
                f"as a loss, which a mixed batch that is {found.way} cannot give: compute it from "
                f"the outputs, outside of the network ({found.why})"
            )
    return found


def _apart(selection: Selection, generator: torch.Generator) -> Selection:
    """With private tensors that differ from row to row."""

    def apart(tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        noise = torch.rand(tensor.shape, generator=generator, device=generator.device)
        return tensor + (0.1 + tensor.abs().mean()) * noise.to(tensor.device, tensor.dtype)

    layers = {
        path: Selected(own.contexts, {name: apart(t) for name, t in own.private.items()})
        for path, own in selection.layers.items()
    }
    return Selection(selection.row, layers)


def _one_of(selection: Selection, row: int) -> Selection:
    """What one row has."""
    return Selection(None, tree_map(lambda tensor: tensor[row], selection.layers))


def _row_dims(some: list[Tensor], all_: list[Tensor], few: int, many: int) -> Dims:
    """Where the rows are in each tensor that is returned, by how its shape grows with them."""
    if len(some) != len(all_):
        raise SuperposeError("the network returns other things for one row than for several")
    dims: list[int | None] = []
    for a, b in zip(some, all_, strict=True):
        grown = [d for d in range(min(a.ndim, b.ndim)) if a.shape[d] != b.shape[d]]
        if a.ndim != b.ndim or len(grown) > 1:
            raise SuperposeError(
                f"the network returns {tuple(a.shape)} for {few} rows and {tuple(b.shape)} for "
                f"{many}: rows of different tasks cannot be told apart in it"
            )
        if grown and (a.shape[grown[0]], b.shape[grown[0]]) != (few, many):
            raise SuperposeError(
                f"the network folds the rows into other things: it returns {tuple(a.shape)} for "
                f"{few} rows and {tuple(b.shape)} for {many}"
            )
        dims.append(grown[0] if grown else None)
    return tuple(dims)


def _agree(values: list[Tensor], dims: Dims, rows: dict[int, list[Tensor]]) -> bool:
    """Whether these rows have the values that they have alone."""
    return len(values) == len(dims) and all(
        _close(value.select(dim, row), alone[place].select(dim, 0))
        for row, alone in rows.items()
        for place, (value, dim) in enumerate(zip(values, dims, strict=True))
        if dim is not None
    )


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding: rows in the wrong place differ by as much as the values are large."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    finite = b[b.isfinite()].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    slack = torch.finfo(a.dtype).eps ** 0.5 * size
    return torch.allclose(a, b, rtol=0, atol=slack, equal_nan=True)


DROPS = {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
    torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout,
}  # fmt: skip
DROPS_INSIDE = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
DRAWS = {
    Tensor.bernoulli_: 1.0, Tensor.uniform_: 0.5, Tensor.normal_: 0.0, torch.bernoulli: 1.0,
    torch.rand: 0.5, torch.rand_like: 0.5, torch.randn: 0.0, torch.randn_like: 0.0,
}  # fmt: skip


class _Still(TorchFunctionMode):
    """Nothing is dropped, and what is drawn is the same every time: passes can be compared."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the function without its randomness."""
        kwargs = kwargs or {}
        if function in DROPS:
            return args[0] if args else kwargs["input"]
        if function in DROPS_INSIDE:  # their only number with a fraction is how much is dropped
            args = tuple(0.0 if isinstance(x, float) else x for x in args)
        if function is F.scaled_dot_product_attention:
            args = tuple(0.0 if place == 4 else x for place, x in enumerate(args))
            kwargs = kwargs | ({"dropout_p": 0.0} if "dropout_p" in kwargs else {})
        found = function(*args, **kwargs)
        return found.fill_(DRAWS[function]) if function in DRAWS else found


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[torch.Generator]:
    """Passes in here leave nothing behind: no gradients, no statistics, nothing that is kept."""
    before = [(m, dict(vars(m)), dict(m._buffers)) for m in model.modules()]
    values = {id(t): (t, t.clone()) for t in model.buffers()} if model.training else {}
    try:
        with torch.no_grad(), _Still():
            yield torch.Generator().manual_seed(0)
    finally:
        for module, own, buffers in before:
            for name in [name for name in vars(module) if name not in own]:
                del vars(module)[name]
            vars(module).update(own)
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for tensor, value in values.values():
                tensor.copy_(value)
