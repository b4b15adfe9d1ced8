"""The views of a superposed model: what its layers use for a task, or for rows of several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from superpose.contexts import cache
from superpose.errors import SuperposeError
from superpose.model.tasks import Superposition, Task  # not for types alone: transformers looks
from superpose.nn.layer import Layer
from superpose.nn.names import inside
from superpose.nn.private import Private
from superpose.nn.view import Ids, LayerView, View, untraced

MOST_VIEWS = 64  # that are remembered

in_transform = torch._C._functorch.peek_interpreter_stack


class Views(nn.Module):
    """The part of a superposed model that makes views."""

    superposition: Superposition
    private_state: Private

    def _ids(self, task: Task | None) -> Ids:
        raise NotImplementedError

    def view(self, task: Task | None = None) -> View:
        """Contexts and private tensors of a task, or of one for each row, for `run`."""
        return self.view_of(self._ids(task))

    @untraced
    def view_of(self, ids: Ids) -> View:
        """The same by the tasks' numbers.

        Where nothing is learned a view is made of aliases alone, which have the numbers of now, and
        is kept: it holds as long as the memory of the task's tensors is the same.
        """
        if not isinstance(ids, int):
            return self._view_by_row(ids)
        private = self.private_state
        closed = private.has_base and ids not in private.begun
        if torch.is_grad_enabled() or in_transform():
            return self._view_of(None if closed else ids)
        key, kept = (closed, private.places(ids)), self.__dict__.setdefault("_kept_views", {})
        known = kept.get(ids)
        if known is not None and known[0] == key:
            view: View = known[1]
            return view
        view = self._view_of(None if closed else ids)
        if not any(layer.acts.context for layer in self.superposed_layers):
            if len(kept) >= MOST_VIEWS:
                kept.clear()
            kept[ids] = (key, view)
        return view

    def base_view(self) -> View:
        """The view of the base, which every task starts from, for `run`.

        >>> from superpose import superpose
        >>> net, x = nn.Linear(4, 2), torch.randn(3, 4)
        >>> model = superpose(net, tasks=2, base=True).eval()
        >>> torch.equal(model.run(model.base_view(), x), net(x))
        True
        """
        if not self.superposition.options.base:
            raise SuperposeError(
                "the model has no base by itself: superpose(…, base=True) keeps it"
            )
        if self.training:
            raise SuperposeError(
                "the base is run in evaluation mode, or its statistics would move: call "
                "model.eval() first"
            )
        return self._view_of(None)

    def _view_of(self, task: int | None) -> View:
        """The view of a task; of None, of a task that is closed."""
        private, found = self.private_state, {}
        tensors = private.starts() if task is None else private.tensors(task)
        for layer in self.superposed_layers:
            own, contexts = tensors.get(layer.path, {}), {}
            if task is not None:
                for name, bound in layer.bound.items():
                    like: Any = layer._parameters[name]
                    dtype = like.dtype if not like.is_complex() else like.dtype.to_real()
                    contexts[name] = cache.table(bound.context, like.device, dtype).one(task)
                for kind, name in layer.acts.context:
                    contexts[name] = kind.context(layer, name, own, [task], None)
                for kind, name in layer.acts.prepare:
                    kind.prepare(name, own)
            found[layer.path] = LayerView(contexts, own)
        return View(found)

    def _view_by_row(self, ids: list[int]) -> View:
        private, found = self.private_state, {}
        slots: dict[int, int] = {}
        for one in ids:
            slots.setdefault(one, len(slots))
        unique, layers = list(slots), self.superposed_layers
        device = next(la.stored(n).device for la in layers for n in la.bound)
        index = torch.tensor([*map(slots.__getitem__, ids)], device=device)
        gate: tuple[Tensor, ...] = ()
        if private.has_base and not private.begun.issuperset(unique):
            open_to = torch.tensor([one in private.begun for one in unique], device=device)
            gate = (open_to.index_select(0, index),)
        tensors, each = private.tensors_by_row(unique, index), self._views_each(unique)
        for layer in layers:
            path = layer.path
            own, contexts = tensors.get(path, {}), {}
            for name, bound in layer.bound.items():
                like: Any = layer._parameters[name]
                dtype = like.dtype if not like.is_complex() else like.dtype.to_real()
                contexts[name] = cache.table(bound.context, like.device, dtype).rows(unique, index)
            for kind, name in layer.acts.context:
                contexts[name] = kind.context(layer, name, own, unique, index)
            for kind, name in layer.acts.prepare:
                kind.prepare(name, own)
            views = tuple([view.layers[path] for view in each[path]]) if path in each else ()
            found[path] = LayerView(contexts, own, gate if layer.bound else (), views)
        return View(found, index)

    def _views_each(self, unique: list[int]) -> dict[str, list[View]]:
        """The views of the tasks of a batch, for layers that run them in turn, or take note."""
        waiting: list[Layer] | None = self.__dict__.get("_waiting")
        if waiting is None:
            every = self.superposed_layers
            waiting = self.__dict__["_waiting"] = [la for la in every if la.may_run_by_task()]
        tops = [la.path for la in waiting if la.runs_by_task() or (la.training and la.acts.note)]
        if not tops:
            return {}
        paths = [layer.path for layer in self.superposed_layers]
        tops += [path for path in paths if any(inside(top, [path]) or not path for top in tops)]
        views = [self.view_of(task) for task in unique]
        return {path: views for path in paths if inside(path, tops) or "" in tops}

    @property
    def superposed_layers(self) -> list[Layer]:
        """The superposed layers, in order, each once."""
        found: list[Layer] | None = self.__dict__.get("_layers")
        if found is None:
            found = [module for module in self.modules() if isinstance(module, Layer)]
            self.__dict__["_layers"] = found
        return found
