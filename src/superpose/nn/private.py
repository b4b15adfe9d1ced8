"""Private tensors: all numbers of a type that a task has for itself, of which layers see views.

A task that has learned nothing shares the memory of the start, copy on write, so it costs little
more than its name, and the number of tensors grows with the tasks, not with tasks × layers. Each
task's flat tensor is a parameter of its own: an optimiser that was made once trains every task, and
does not move those that were not in the batch, whose parameters have no gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.nn.names import joined

if TYPE_CHECKING:
    from superpose.nn.layer import Layer

STATE = "private_state"  # its name in the model
BEGUN = "tasks_begun"  # the marker in a state: the numbers of the tasks that have begun
TRAINED, RANK, FROZEN, STATISTICS, RECOGNITION = (
    "trained",
    "rank",
    "frozen",
    "statistics",
    "recognition",
)
WRITTEN = (STATISTICS, RECOGNITION)  # by layers, not by an optimiser


class Slot(NamedTuple):
    """One private tensor of a layer: its flat tensor, and what tasks start from.

    `added` says that the plain layer has no such tensor.
    """

    path: str
    name: str
    flat: str
    start: Tensor
    added: bool = False

    @property
    def full_name(self) -> str:
        """Its name in the plain network."""
        return joined(self.path, self.name)


class Flats(nn.Module):
    """The flat tensors of all tasks, of one kind and type of number."""

    start: Tensor

    def __init__(self, kind: str, slots: list[Slot], begun: set[int] | None) -> None:
        super().__init__()
        self.kind, self.begun = kind, begun if kind != RECOGNITION else None
        self.slots = [slot._replace(start=slot.start.new_empty(0)) for slot in slots]
        self.places = [(slot.path, slot.name, slot.start.shape) for slot in slots]
        self.sizes = [slot.start.numel() for slot in slots]
        self.start = torch.cat([slot.start.detach().reshape(-1) for slot in slots])
        self.agreed: dict[str, Tensor] = {}  # statistics as processes last agreed on them

    @property
    def own(self) -> dict[str, Any]:
        """The flat tensor of each task, by its number."""
        kept: Any = self._buffers if self.kind in WRITTEN else self._parameters
        return kept

    @property
    def sharded(self) -> bool:
        """Whether each process has a part of every tensor."""
        return any(map(is_sharded, islice(self.own.values(), 1)))  # all of them, or none

    def put(self, task: str, flat: Tensor, learns: bool = True) -> None:
        """Make this the task's tensor; an optimiser that knows its parameter goes on knowing it."""
        known = self.own.get(task)
        if known is not None and torch._has_compatible_shallow_copy_type(known, flat):
            known.data = flat
        elif self.kind in WRITTEN:
            self.own[task] = flat
        else:
            learns = known.requires_grad if known is not None else learns and self.kind != FROZEN
            self.own[task] = nn.Parameter(flat, learns)

    def split(self, flat: Tensor) -> dict[str, dict[str, Tensor]]:
        """The tensors of all layers, by path and name, from (…, numbers)."""
        found: dict[str, dict[str, Tensor]] = {}
        lead = flat.shape[:-1]
        parts = flat.split(self.sizes, -1)
        for (path, name, shape), part in zip(self.places, parts, strict=True):
            found.setdefault(path, {})[name] = part.view(lead + shape)
        return found

    def learned(self) -> list[str]:
        """The tasks kept in states and files: with a base those that have begun, and any others
        whose tensor is not, to the bit, the start."""
        if self.sharded:
            return list(self.own)  # processes could come to different answers
        begun, is_cow = self.begun or (), torch._C._is_cow_tensor  # type: ignore[attr-defined]
        return [
            task
            for task, flat in self.own.items()
            if not (is_cow(flat) or same(flat, self.start)) or int(task) in begun
        ]

    def move_start(self, start: Tensor) -> None:
        """Let later tasks start from this; those that there are keep the start that they had."""
        for task, flat in self.own.items():
            if is_fresh(flat):
                self.put(task, self.start.clone())
        self.start = start

    def restart(self, start: Tensor) -> None:
        """Let all tasks start from this."""
        self.start = start
        for task in list(self.own):
            self.put(task, fresh(start))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As for any module, but tasks that share the start's memory go on sharing it.

        Statistics for recognition count rows, so they never have fewer bits than `float32`.
        """
        move = _wide(fn) if self.kind == RECOGNITION else fn
        self.start = move(self.start)
        order = dict(self.own)
        shared = {} if self.start.is_shared() else {t: f for t, f in order.items() if is_fresh(f)}
        for task in shared:
            del self.own[task]
        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        moved = dict(self.own)
        self.own.clear()
        self.own.update({task: moved.get(task, flat) for task, flat in order.items()})
        for task in shared:
            self.put(task, fresh(self.start))
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for task in self.learned():
            destination[f"{prefix}{task}"] = (
                self.own[task] if keep_vars else self.own[task].detach()
            )

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Tensor],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take what tasks learned; the others have the start."""
        if self.sharded:  # all tasks are in the state, as in that of any module
            lists = (missing_keys, unexpected_keys, error_msgs)
            super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
            return
        given = {key[len(prefix) :]: t for key, t in state_dict.items() if key.startswith(prefix)}
        for task, value in given.items():
            if task not in self.own:
                unexpected_keys.append(prefix + task)
            elif value.shape != self.start.shape:
                shapes = f"{tuple(value.shape)}, and {tuple(self.start.shape)} in the model"
                error_msgs.append(f"size mismatch for {prefix}{task}: it is {shapes}")
        for task, flat in self.own.items():
            value = given.get(task, self.start)
            value = value if value.shape == self.start.shape else self.start
            if task in given or not is_fresh(flat):
                with torch.no_grad():
                    flat.copy_(value)
            if task in given and self.kind in WRITTEN:
                self.agreed[task] = value.clone()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have no copy of what shares the start's memory."""
        state, kept = dict(vars(self)), "_buffers" if self.kind in WRITTEN else "_parameters"
        state[kept] = {t: None if is_fresh(flat) else flat for t, flat in self.own.items()}
        return state | {"learns": {t: flat.requires_grad for t, flat in self.own.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        learns = state.pop("learns")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.start.is_shared():  # memory that torch.load made cannot be copied on write
            self.start = self.start.clone()
        own = dict(self.own)
        self.own.clear()
        for task, flat in own.items():
            if flat is None:
                self.put(task, fresh(self.start), learns[task])
            else:
                self.own[task] = flat

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """An optimiser that is copied with the model knows the copies of its parameters."""
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        memo |= {id(flat): made.own[task] for task, flat in self.own.items()}
        return made


class Private(nn.Module):
    """What every task of a model has for itself, and which tasks have begun to learn."""

    def __init__(self, layers: list[Layer], slots: list[Slot], has_base: bool) -> None:
        super().__init__()
        self.layers, self.has_base = {layer.path: layer for layer in layers}, has_base
        self.begun: set[int] = set()
        alike: dict[tuple[str, torch.dtype, torch.device], list[Slot]] = {}
        for slot in sorted(slots, key=lambda slot: slot.full_name):  # not as layers were registered
            alike.setdefault((slot.flat, slot.start.dtype, slot.start.device), []).append(slot)
        for (kind, *_), some in alike.items():
            count = sum(one.kind == kind for one in self.flats.values())
            self.add_module(
                f"{kind}_{count + 1}" if count else kind,
                Flats(kind, some, self.begun if has_base else None),
            )

    @property
    def flats(self) -> dict[str, Flats]:
        """The flat tensors by their names."""
        kept: Any = self._modules
        return kept

    @property
    def slots(self) -> list[Slot]:
        """All private tensors."""
        return [slot for flats in self.flats.values() for slot in flats.slots]

    @property
    def tasks_begun(self) -> Tensor:
        """What a state has under this name; tools that go by names look it up, and swap it."""
        return torch.tensor(sorted(self.begun), dtype=torch.int64)

    @tasks_begun.setter
    def tasks_begun(self, value: Tensor) -> None:
        pass

    def forward(self, *inputs: Any) -> Any:
        """Refuse: it has nothing to compute."""
        raise SuperposeError(
            f"{STATE} keeps the private tensors of a superposed model, and computes nothing: take "
            "layers out of sp.unsuperpose(model, task), not out of the superposed model"
        )

    def is_closed(self, task: int) -> bool:
        """Whether a task is still its base."""
        return self.has_base and task not in self.begun

    def learned(self) -> set[int]:
        """The tasks that have begun, or whose parameters are no longer what they were at first."""
        found = set(self.begun)
        for flats in self.flats.values():
            found |= set() if flats.kind in WRITTEN else set(map(int, flats.learned()))
        return found

    def extend(self, slots: list[Slot], tasks: Iterable[int]) -> None:
        """Let tasks that are there already keep something more, all of it of one kind."""
        made = Flats(slots[0].flat, sorted(slots, key=lambda slot: slot.full_name), None)
        self.add_module(made.kind, made)
        for task in tasks:
            made.put(str(task), fresh(made.start))

    def add(self, tasks: Iterable[int]) -> None:
        """Give new tasks the start."""
        keys = [str(task) for task in tasks]
        for flats in self.flats.values():
            for key in keys:
                flats.put(key, fresh(flats.start))

    def remove(self, task: int) -> None:
        """Forget a task's tensors."""
        self.begun.discard(task)
        for flats in self.flats.values():
            del flats.own[str(task)]

    def of(self, task: int) -> dict[str, Tensor]:
        """A task's tensors by their names in the plain network: views, which can be written to."""
        found: dict[str, Tensor] = {}
        for flats in self.flats.values():
            flat, place = flats.own[str(task)], 0
            for (path, name, shape), size in zip(flats.places, flats.sizes, strict=True):
                # one by one: what `split` gives must not be written to where gradients are kept
                found[joined(path, name)] = flat.narrow(0, place, size).view(shape)
                place += size
        return found

    def each(self, path: str, name: str, tasks: Iterable[int]) -> list[Tensor]:
        """A layer's tensor of several tasks: views, which can be written to."""
        for flats in self.flats.values():
            start = 0
            for (own_path, own_name, shape), size in zip(flats.places, flats.sizes, strict=True):
                if (own_path, own_name) == (path, name):
                    return [
                        flats.own[str(k)].detach()[start : start + size].view(shape) for k in tasks
                    ]
                start += size
        raise KeyError(joined(path, name))

    def places(self, task: int) -> list[int]:
        """The memory of a task's tensors: views of them hold as long as it is the same."""
        key, found = str(task), []
        flats: Any
        for flats in self._modules.values():
            flat = (flats._parameters or flats._buffers)[key]
            found.append(flat.untyped_storage()._cdata)
        return found

    def tensors(self, task: int) -> dict[str, dict[str, Tensor]]:
        """For each layer its tensors of a task."""
        found: dict[str, dict[str, Tensor]] = {}
        key, every = str(task), self._modules.values()
        flats: Any
        for flats in every:
            written = flats.kind in WRITTEN
            flat = (flats._buffers if written else flats._parameters)[key]
            if flat.__class__ not in (Tensor, nn.Parameter) and is_sharded(flat):
                raise SuperposeError(
                    "the private tensors of tasks are sharded, and a pass needs them before its "
                    "layers run: call fully_shard on the model as a whole, and call the model, not "
                    "a method of it"
                )
            parts = flat.split(flats.sizes)
            for (path, name, shape), part in zip(flats.places, parts, strict=True):
                # what one layer writes to its own does not outdate another's
                part = part.view(shape).data if written else part.view(shape)
                found.setdefault(path, {})[name] = part
        return found

    def starts(self) -> dict[str, dict[str, Tensor]]:
        """For each layer the plain layer's own tensors, which a task has that is closed."""
        found = {
            path: {name: layer.stored(name) for name in layer.private}
            for path, layer in self.layers.items()
        }
        plain = (Tensor, nn.Parameter)
        if any(t.__class__ not in plain for own in found.values() for t in own.values()):
            for flats in self.flats.values():  # the layers' own have been quantised since
                for path, own in flats.split(flats.start).items():
                    found[path] |= {n: t for n, t in own.items() if n in self.layers[path].private}
        return found

    def tensors_by_row(self, tasks: list[int], index: Tensor) -> dict[str, dict[str, Tensor]]:
        """For each layer its tensors of rows of several tasks, (rows, …)."""
        found: dict[str, dict[str, Tensor]] = {}
        closed = {n for n in tasks if n not in self.begun} if self.has_base else ()
        flats: Any
        for flats in self._modules.values():
            if flats.kind == RECOGNITION:
                continue  # no product needs them
            kept = flats._buffers if flats.kind in WRITTEN else flats._parameters
            each = [flats.start if n in closed else kept[str(n)] for n in tasks]
            rows, lead = torch.stack(each).index_select(0, index), index.shape
            for (path, name, shape), part in zip(
                flats.places, rows.split(flats.sizes, -1), strict=True
            ):
                found.setdefault(path, {})[name] = part.view(lead + shape)
        return found

    def check_starts(self, layers: dict[str, Layer]) -> None:
        """Refuse starts of tasks that somebody wrote to, and layers that were replaced."""
        lost = next((path for path in self.layers if path not in layers), None)
        if lost is not None:
            raise SuperposeError(
                f"layer {lost!r} was replaced after the network was superposed, and with it what "
                "tasks have of it: replace layers in the plain network, sp.unsuperpose(model, "
                "task), before it is superposed"
            )
        for flats in self.flats.values():
            if flats.sharded or flats.start.is_meta:
                continue
            parts, moved = list(flats.start.split(flats.sizes)), False
            for place, slot in enumerate(flats.slots):
                layer = layers[slot.path]
                now = None if slot.added else full_start(layer, slot.name)
                if now is None or same(now.reshape(-1), parts[place]):
                    continue
                if layer.stored(slot.name).requires_grad:  # tied to one that learns, it has moved
                    parts[place], moved = now.reshape(-1), True
                else:
                    raise SuperposeError(
                        f"{slot.full_name} was written to outside a task, and each task has its "
                        "own: write to it inside `with model.task(…):`, or to the plain network "
                        "before superpose()"
                    )
            if moved:
                flats.move_start(torch.cat(parts))

    def restart(self) -> None:
        """Let all tasks start from what the layers have now."""
        self.begun.clear()
        for flats in self.flats.values():
            parts = list(flats.start.split(flats.sizes))
            for place, slot in enumerate(flats.slots):
                now = None if slot.added else full_start(self.layers[slot.path], slot.name)
                if now is not None:
                    parts[place] = now.reshape(-1).to(flats.start)
            if not flats.sharded:
                flats.restart(torch.cat(parts).detach())

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}{BEGUN}"] = self.tasks_begun

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """The flat tensors are loaded after this, and layers were before."""
        self.restart()
        if f"{prefix}{BEGUN}" in state_dict:  # the model has refused a state without
            self.begun.update(state_dict[f"{prefix}{BEGUN}"].tolist())


def is_private(name: str) -> bool:
    """Whether a tensor of this name, in a state, is some task's own."""
    return f".{STATE}." in f".{name}"


def full_start(layer: Layer, name: str) -> Tensor | None:
    """What the layer has under this name; None if it has been quantised since."""
    from superpose.nn.quantised import is_quantised

    stored: Tensor | None = layer.stored(name)
    return None if stored is None or is_quantised(stored) or is_sharded(stored) else stored.detach()


def fresh(start: Tensor) -> Tensor:
    """A copy of the start that takes no memory until it is written to."""
    return torch._lazy_clone(start) if start.device.type in ("cpu", "cuda") else start.clone()


def is_fresh(flat: Tensor) -> bool:
    """Whether nothing was written to a copy of the start yet."""
    return bool(torch._C._is_cow_tensor(flat))  # type: ignore[attr-defined]


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    if one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_meta:  # there are no bits
        return one.shape == other.shape
    return torch.equal(one.detach().view(torch.uint8), other.detach().view(torch.uint8))


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a `DTensor`, of which each process has a part."""
    return hasattr(tensor, "placements")


def _wide(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same move of a tensor, to types of 32 bits and more alone."""

    def moved(tensor: Tensor) -> Tensor:
        found = fn(tensor)
        narrow = found.dtype.itemsize < torch.float32.itemsize
        return tensor.to(found.device) if narrow else found

    return moved
