"""Made classes of layers, whose tensors, when they are read, are those of the active task."""

from __future__ import annotations

import functools
from typing import Any

from superpose.nn.unreadable import Unreadable
from superpose.nn.view import LayerView, active, outside


def view_of(layer: Any) -> LayerView | None:
    """What a layer has of the task that is active, or was chosen; None if there is no such task."""
    view = active.view
    running = view is not None and active.home is layer.home
    if running and view is not None and layer.path in view.layers:
        return view.layers[layer.path]
    chosen = outside(layer.home, layer.path)
    if chosen is None and running:  # of a row that another layer runs alone
        raise layer.not_direct("is read by another layer, which computes rows by themselves")
    return None if chosen is None else chosen.layers[layer.path]


def of_task(name: str) -> property:
    """A layer's tensor: of the active task, or, while there is none, as it is stored."""

    def get(layer: Any) -> Any:
        own = view_of(layer)
        if own is None:
            return layer.stored(name)
        view = active.view
        if view is not None and view.rows is not None and active.home is layer.home:
            stored = layer.stored(name)
            return None if stored is None else Unreadable.of(stored, layer.path, name)
        return layer.read(name, own)

    def put(layer: Any, value: Any) -> None:
        vars(layer)[name] = value

    return property(get, put)


@functools.cache
def layer_class(form: Any, plain: Any, names: tuple[str, ...]) -> Any:
    """The class of a layer of this form, a `plain` in all that the form leaves open.

    Tensors of these names are those of the active task.
    """
    members: dict[str, Any] = {name: of_task(name) for name in names}
    kept = vars(form).get("_made_by", form)  # pickles cannot name a form that was made
    members |= {"_made_of": (kept, plain, names), "__reduce__": _reduce}
    return type(plain.__name__, (form, plain), members)


def _reduce(layer: Any) -> Any:
    return empty_layer, type(layer)._made_of, layer.__getstate__()


def empty_layer(*parts: Any) -> Any:
    """An instance of a made class, for pickles, which cannot name it."""
    made = class_of(*parts)
    return made.__new__(made)


def plain_forward(kind: Any) -> Any:
    """The forward pass of the plain class, whose arguments have their names."""
    made = vars(kind).get("_made_of")
    return kind.forward if made is None else made[1].forward


def class_of(form: Any, plain: Any, names: tuple[str, ...]) -> Any:
    """The class again from its parts; a form that was made is given as what makes it."""
    return layer_class(form if isinstance(form, type) else form(), plain, names)
