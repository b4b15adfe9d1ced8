"""The gate of a base: W is closed to a task that has not begun to learn, which is its base then."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.nn.names import joined
from superpose.nn.selection import Tasks, by_row

if TYPE_CHECKING:
    from superpose.nn.layer import Layer
    from superpose.nn.private import PrivateState


def check_frozen(own: Iterable[Layer]) -> None:
    """Refuse a base that would learn."""
    for layer in own:
        for name, base in getattr(layer.bases, "_parameters", {}).items():  # quicker than `items`
            if isinstance(base, nn.Parameter) and base.requires_grad:  # not one that is given
                raise SuperposeError(
                    f"{joined(layer.path, name)} is part of the base and would learn, which "
                    "changes the base of all tasks: freeze it, or let all learn but the base, "
                    "model.requires_grad_(True)"
                )


def closed_to(
    state: PrivateState, tasks: Tasks, device: torch.device, learns: Callable[[], bool]
) -> Tensor | None:
    """1 for a task that has not begun to learn, and is its base; None if all have begun.

    A gradient that comes back through it begins the task, if it is not zero and something `learns`
    by it. Those of `torch.func` do not: what is learned by them is given to a pass.
    """
    if state.mark is None:
        return None
    waiting = [task for task in tasks.unique if not state.has_begun(task)]
    if not waiting:
        return None
    if not state.learns and _differentiated_by_func():
        _warn(state, waiting[0])
    with torch._C._DisableFuncTorch():  # in a transform nothing could be told of its gradient
        each = [torch.tensor(float(task in waiting), device=device) for task in tasks.unique]
        closed = by_row(each, tasks.row)
        if torch.is_grad_enabled():
            closed = nn.Parameter(closed)  # `requires_grad_` is refused in a transform

            def begin(gradient: Tensor) -> None:
                if learns():
                    state.begin(task for task in _reached(gradient, tasks) if task in waiting)

            closed.register_hook(begin)
    return closed


def _differentiated_by_func() -> bool:
    """Whether a transform of `torch.func` computes gradients."""
    functorch = torch._C._functorch
    kinds = (functorch.TransformType.Grad, functorch.TransformType.Jvp)
    return any(one.key() in kinds for one in functorch.get_interpreter_stack() or ())


def _warn(state: PrivateState, task: int) -> None:
    warnings.warn(
        f"task {state.name_of(task)!r} has no private parameters, so nothing tells that it learns "
        "by gradients of torch.func, and it stays its base: call "
        f"model.begin({state.name_of(task)!r}) before",
        stacklevel=2,
    )


def _reached(gradient: Tensor, tasks: Tasks) -> list[int]:
    """The tasks of rows on which the loss depends."""
    slots = torch.zeros_like(gradient, dtype=torch.long) if tasks.row is None else tasks.row
    reached = slots.flatten()[gradient.flatten() != 0]
    return [tasks.unique[slot] for slot in reached.unique().tolist()]


def opened(own: Tensor, closed: Tensor | None) -> Tensor:
    """What W gives a task; zero if it is closed to it, with the gradient that it would have.

    `closed` is 1 or 0, for all of `own` or for each of its rows, (rows, …). It is zero even where
    what W gives is not finite.
    """
    if closed is None:
        return own
    each = _each(closed, own)
    if not torch.is_grad_enabled():
        return torch.where(each.bool(), 0.0, own)
    zero = (own - each.to(own.dtype) * own.detach()).nan_to_num(0, 0, 0)
    return torch.where(each.bool(), zero + _signal(each, own), own)


def _signal(each: Tensor, own: Tensor) -> Tensor:
    """Zero, whose gradient tells the gate that the loss depends on `own`.

    That of `zero` is zero as long as W is, and gradients of logits add up to zero without weights.
    """
    weights = torch.linspace(1, 2, own.shape[-1], dtype=own.dtype, device=own.device)
    told = each.to(own.dtype) * weights
    return told - told.detach()


def unmoved(x: Tensor, closed: Tensor | None) -> Tensor:
    """The same x, through which W has no say in the gradient of what came before, if closed."""
    if closed is None or not torch.is_grad_enabled():
        return x
    return torch.where(_each(closed, x).bool(), x.detach(), x)


def _each(closed: Tensor, x: Tensor) -> Tensor:
    """The gate, ready for x or for each of its rows."""
    more = x.ndim - closed.ndim
    return closed.view(closed.shape + (1,) * more) if closed.ndim and more else closed
