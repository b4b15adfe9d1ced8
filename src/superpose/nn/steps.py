"""Steps of optimisers: the step of one task leaves the private parameters of the others alone.

An optimiser passes over a parameter whose gradient is None. It moves one whose gradient is zero, by
momentum and weight decay, and `optimiser.zero_grad(set_to_none=False)` leaves zeros in the private
parameters of every task that has learned. They are hidden from the step, unless a gradient came
back to their task since the last one. A task that was added after an optimiser was made is not in
it: a warning says so, and another one that a task learns without the means of its inputs.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

if TYPE_CHECKING:
    from superpose.nn.flat import Group
    from superpose.nn.private import PrivateState

PATIENCE = 2  # steps in which a task is left out: the first may be that of another's optimiser

_states: WeakSet[PrivateState] = WeakSet()
_hidden: WeakKeyDictionary[Optimizer, list[tuple[Tensor, Tensor]]] = WeakKeyDictionary()
_watching = threading.Lock()
_hooks: list[Any] = []


def watch(state: PrivateState) -> None:
    """See to the private parameters of a model whenever an optimiser steps."""
    with _watching:
        _states.add(state)
        if not _hooks:
            _hooks.append(register_optimizer_step_pre_hook(_before))
            _hooks.append(register_optimizer_step_post_hook(_after))


def noticed(state: PrivateState, task: int, flat: Tensor) -> Tensor:
    """The same numbers; a gradient that comes back to them tells that their task learns."""
    if not flat.requires_grad or not torch.is_grad_enabled():
        return flat
    if torch._C._functorch.peek_interpreter_stack() is not None:  # a transform takes no hooks
        state.ran[task] = True
        return flat
    seen = flat.view_as(flat)

    def learns(gradient: Tensor) -> None:
        state.ran[task] = True

    seen.register_hook(learns)
    return seen


def _before(optimiser: Optimizer, given: Any, options: Any) -> tuple[Any, Any] | None:
    """Hide zeros from the step; if it computes gradients itself, when it has computed them."""
    if torch.compiler.is_compiling():
        return None
    closure = options.get("closure", given[1] if len(given) > 1 else None)
    if not callable(closure):
        _hide(optimiser)
        return None

    def closure_and_hide() -> Any:
        _show(optimiser)
        loss = closure()
        _hide(optimiser)
        return loss

    if "closure" in options:
        return given, {**options, "closure": closure_and_hide}
    return (given[0], closure_and_hide, *given[2:]), options


def _after(optimiser: Optimizer, given: Any, options: Any) -> None:
    """Show the zeros again, and warn of a task that learns and that the optimiser leaves out."""
    if torch.compiler.is_compiling():
        return
    _show(optimiser)
    for state, group, task, flat in _trained():
        if state.ran.get(task) and _begins(optimiser, state, task, flat):
            state.begin([task])
        if _has(optimiser, flat):
            if state.ran.get(task):
                _check_means(state, task)
            if task in state.ran:
                state.ran[task] = False
            state.left_out[task] = PATIENCE
        elif state.ran.get(task) and _leaves_out(optimiser, group, task, flat):
            state.ran[task] = False
            state.left_out[task] = state.left_out.get(task, 0) + 1
            if state.left_out[task] == PATIENCE:
                _warn(state, task)


def _hide(optimiser: Optimizer) -> None:
    hidden = _hidden.setdefault(optimiser, [])
    idle: dict[tuple[PrivateState, int], bool] = {}  # tasks without gradients need no more looks
    for state, _, task, flat in _trained():
        ran, gradient = state.ran.get(task, False), flat.grad
        idle[state, task] = idle.get((state, task), True) and not ran and gradient is None
        if ran or gradient is None or not _has(optimiser, flat) or not _is_zero(gradient):
            continue
        hidden.append((flat, gradient))
        flat.grad = None
    for (state, task), gone in idle.items():
        if gone and not state.ran.get(task):
            state.ran.pop(task, None)


def _show(optimiser: Optimizer) -> None:
    for flat, gradient in _hidden.pop(optimiser, []):
        if flat.grad is None:
            flat.grad = gradient


def _begins(optimiser: Optimizer, state: PrivateState, task: int, flat: Tensor) -> bool:
    """Whether a step is the first of a task: of what it has for itself, or of what tasks share.

    In evaluation mode no gradient tells that a task begins to learn, and a step may be too small to
    change what it has for itself.
    """
    if state.mark is None or state.has_begun(task) or flat.grad is None or _is_zero(flat.grad):
        return False
    shared = (layer.stored(name) for layer in state.bound for name in layer.contexts)
    return _has(optimiser, flat) or any(_has(optimiser, weight) for weight in shared)


def _has(optimiser: Optimizer, flat: Tensor) -> bool:
    """Whether an optimiser has a parameter: one that it keeps something of, or any of its own."""
    every = (one for group in optimiser.param_groups for one in group["params"])
    return flat in optimiser.state or any(one is flat for one in every)


def _trained() -> Iterator[tuple[PrivateState, Group, int, Any]]:
    """The private parameters of all tasks that ran with gradients, of all models.

    Other threads may train some of them meanwhile, and forget that a task ran.
    """
    with _watching:
        states = list(_states)
    for state in states:
        for group in state.groups.values():
            parameters = dict(group._parameters)
            for task in list(state.ran):
                if str(task) in parameters:
                    yield state, group, task, parameters[str(task)]


def _is_zero(gradient: Any) -> bool:
    """Whether all of it is zero; of a sharded one, all that this process has."""
    own: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    if own.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not bool(own.any())


def _leaves_out(optimiser: Optimizer, group: Group, task: int, flat: Tensor) -> bool:
    """Whether a task has a gradient and has learned nothing, and other tasks are there to learn."""
    if flat.grad is None or not flat.requires_grad or group.sharded or group.has_learned(task):
        return False
    known = {id(one) for each in optimiser.param_groups for one in each["params"]}
    return any(id(other) in known for other in group.flats().values())


def _check_means(state: PrivateState, task: int) -> None:
    """Warn of a task that learns where means of its inputs are not taken: in evaluation."""
    if task in state.centred or not state.counts or state.counts[0].group.sharded:
        return
    state.centred.add(task)
    if not any(bool(part.of(task)) for part in state.counts):
        warnings.warn(
            f"task {state.name_of(task)!r} learns without the means that centre='task' takes out: "
            "they are taken in training mode, and the model is in evaluation mode; call "
            "model.train() before, and .eval() of the norms and dropouts that are to stay still",
            stacklevel=4,
        )


def _warn(state: PrivateState, task: int) -> None:
    name = state.name_of(task)
    warnings.warn(
        f"the private parameters of task {name!r} do not learn: the optimiser was made before the "
        "task was added, and does not have them; give them to it with the learning rate of the "
        f"others, `for group in model.parameter_groups(lr, task={name!r}): "
        "optimiser.add_param_group(group)` (with rank_lr=… too, if tasks have low-rank parts), or "
        "freeze them with requires_grad_(False)",
        stacklevel=4,
    )
