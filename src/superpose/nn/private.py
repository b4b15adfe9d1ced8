"""Private tensors: what every task of a model has for itself, and which tasks have begun."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.nn.flats import RECOGNITION, WRITTEN, Flats, Slot, fresh, is_sharded, same
from superpose.nn.names import joined
from superpose.nn.quantised import is_quantised

if TYPE_CHECKING:
    from superpose.nn.layer import Layer

STATE = "private_state"  # its name in the model
BEGUN = "tasks_begun"  # the marker in a state: the numbers of the tasks that have begun


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
    stored: Tensor | None = layer.stored(name)
    return None if stored is None or is_quantised(stored) or is_sharded(stored) else stored.detach()
