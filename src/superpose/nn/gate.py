"""The gate of a base: W is closed to a task that has not begun to learn, which is its base then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from superpose.nn.selection import Tasks, by_row

if TYPE_CHECKING:
    from superpose.nn.private import PrivateState


def closed_to(state: PrivateState, tasks: Tasks, device: torch.device) -> Tensor | None:
    """1 for a task that has not begun to learn, and is its base; None if all have begun.

    A gradient that comes back through it begins the task. Those of `torch.func` do not: what is
    learned by them is given to a pass.
    """
    if state.mark is None:
        return None
    waiting = [task for task in tasks.unique if not state.has_begun(task)]
    if not waiting:
        return None
    with torch._C._DisableFuncTorch():  # in a transform nothing could be told of its gradient
        each = [torch.tensor(float(task in waiting), device=device) for task in tasks.unique]
        closed = by_row(each, tasks.row)
        if torch.is_grad_enabled():
            closed = nn.Parameter(closed)  # `requires_grad_` is refused in a transform
            closed.register_hook(lambda gradient: state.begin(waiting))
    return closed


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
    return torch.where(each.bool(), zero, own)


def unmoved(x: Tensor, closed: Tensor | None) -> Tensor:
    """The same x, through which W has no say in the gradient of what came before, if closed."""
    if closed is None or not torch.is_grad_enabled():
        return x
    return torch.where(_each(closed, x).bool(), x.detach(), x)


def _each(closed: Tensor, x: Tensor) -> Tensor:
    """The gate, ready for x or for each of its rows."""
    more = x.ndim - closed.ndim
    return closed.view(closed.shape + (1,) * more) if closed.ndim and more else closed
