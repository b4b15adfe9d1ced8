"""Method `solve`: layer by layer, the weights that do best what the models' own weights did.

For one layer, with X the inputs that it sees in model k alone and X̂ those that it sees in the
packed network, whose earlier layers are packed already, so that errors do not pile up:

    minimise Σₖ ‖W C(k) X̂ₖ + bₖ − (Wₖ Xₖ + bₖ⁰)‖² / ‖Wₖ Xₖ‖² + ridge · ‖W‖²,

which needs no more of the inputs than A = Σₖ C X̂ₖ X̂ₖᵀ Cᵀ and B = Σₖ Wₖ Xₖ X̂ₖᵀ Cᵀ:
W = B (A + ridge)⁻¹. With a low-rank part for each task, see `low_rank.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.model import Superposed
from superpose.nn.names import joined
from superpose.nn.quantised import full
from superpose.packing.calibration import Rows, check_calibration, noise
from superpose.packing.distil import finetune
from superpose.packing.inputs import (
    Part,
    Weight,
    evaluating,
    in_order,
    quiet_run,
    reaching,
    weights_of,
)
from superpose.packing.joint import Joint
from superpose.packing.least_squares import Moments, Problem
from superpose.packing.low_rank import has_part, set_part, solve_beside, unbound
from superpose.packing.methods import PackingOptions
from superpose.packing.packed import Packed, set_private
from superpose.packing.sources import Sources

HELD_OUT = 10  # one row in so many chooses the ridge
BIASES = {"weight": "bias", "in_proj_weight": "in_proj_bias"}  # that join a weight's product


class Solve(Joint):
    """The weights whose read-outs do best on the calibration inputs; then distillation, if asked.

    Without calibration inputs they are Gaussian noise, which is worse.
    """

    name = "solve"
    takes = frozenset({"finetune", "rank"})
    needs_inputs = True

    def fill(self, packed: Packed, sources: Sources, options: PackingOptions) -> None:
        """Solve layer by layer."""
        _check_parts(packed)
        for name in sources.models:
            set_private(packed, name, sources.open(name))
        seed, given = packed.superposition.seed, options.calibration
        if given is None:
            given = noise(sources, seed, options.input_shape)
        check_calibration(packed.tasks, given)
        size, track = options.batch_size, options.track
        solve(packed, sources, given, size, lambda weights: track(weights, "solve"))
        if options.finetune:
            with evaluating(packed):  # rows of other tasks must not meet in a batch's statistics
                steps = options.finetune
                finetune(packed, sources, given, steps, size, seed, lambda s: track(s, "finetune"))


def _check_parts(packed: Packed) -> None:
    conversion = packed.superposition.conversion
    if conversion.rank and conversion.conv == "channel":
        raise SuperposeError(
            f"rank={conversion.rank}: the low-rank part of a convolution whose channels are bound "
            "cannot be solved for: leave conv='channel' out, or pack by method 'delta'"
        )


def solve(
    packed: Superposed,
    sources: Sources,
    calibration: Mapping[Any, Any],
    batch_size: int,
    track: Any = iter,
) -> None:
    """Set the bound weights of a packed model, and the biases that go with them."""
    names = packed.superposition.names
    weights = weights_of(packed)
    first = next(iter(names))
    with quiet_run():
        ordered = in_order(sources.open(first), weights, Rows.of(first, calibration[first])[:2])
        done: list[Weight] = []
        for weight, calls in track(ordered):
            problems: list[Problem] = []
            for name, number in names.items():
                rows, read = Rows.of(name, calibration[name]), read_out(done, number)
                net = sources.open(name)
                seen = observe(weight, calls, number, net, rows, read, batch_size)
                centre = bias_name(weight) is not None
                apart = has_part(weight.layer, weight.name)
                problems = problems or [Problem(part.outputs, centre, apart) for part in seen]
                for problem, part in zip(problems, seen, strict=True):
                    problem.add(number, part.kept, part.held)
            _store(weight, problems)
            done.append(weight)


def read_out(weights: Iterable[Weight], task: int) -> dict[str, Tensor]:
    """What the plain network of a task has to use in place of its own weights."""
    found: dict[str, Tensor] = {}
    for weight in weights:
        layer = weight.layer
        own = layer.read_out(task)
        found[weight.plain] = own[weight.name].detach()
        bias = bias_name(weight)
        if bias is not None:
            found[joined(layer.path, bias)] = own[bias].detach()
    return found


def bias_name(weight: Weight) -> str | None:
    """The private tensor that is added to what this weight gives, if there is one."""
    name = BIASES.get(weight.name, "")
    return name if name in weight.layer.private else None


@dataclass(frozen=True)
class Seen:
    """What one task's inputs tell of one part of a weight: some rows to fit, some held out."""

    outputs: slice
    kept: Moments
    held: Moments

    @property
    def both(self) -> Moments:
        """Of all its rows."""
        return self.kept + self.held


def observe(
    weight: Weight,
    calls: int,
    task: int,
    net: nn.Module,
    rows: Rows,
    read: dict[str, Tensor],
    batch_size: int,
) -> list[Seen]:
    """Run a model's inputs through it as it was, and as it is with the weights read out so far."""
    own = weight.matrix(net.get_parameter(weight.plain).detach())
    base = weight.layer.bases.get(weight.name)
    common = None if base is None else weight.matrix(full(base).detach())
    bias = bias_name(weight)
    offset = None
    if bias is not None:
        offset = net.get_parameter(joined(weight.layer.path, bias)).detach()
        offset = offset.view(own.shape[0], 1, -1)
    seen: list[Seen] = []
    index = torch.arange(len(rows))
    held_out = index % HELD_OUT == HELD_OUT - 1
    for held in (False, True):
        for seed, batch in enumerate(rows[index[held_out == held]].split(batch_size)):
            alone = reaching(net, weight, calls, batch, {}, seed)
            now = reaching(net, weight, calls, batch, read, seed) if read else alone
            seen = seen or [Seen(part.outputs, Moments(), Moments()) for part in alone]
            for place, (part, x) in enumerate(zip(alone, now, strict=True)):
                more = _moments(weight, task, part, x.x, own, common, offset)
                side = "held" if held else "kept"
                summed = getattr(seen[place], side) + more
                seen[place] = replace(seen[place], **{side: summed})
    return seen


def _moments(
    weight: Weight,
    task: int,
    alone: Part,
    now: Tensor,
    own: Tensor,
    common: Tensor | None,
    offset: Tensor | None,
) -> Moments:
    y = alone.x @ own[:, alone.outputs].mT
    if offset is not None:
        y = y + offset[..., alone.outputs]
    if common is not None:
        y = y - now @ common[:, alone.outputs].mT
    context = weight.layer.contexts[weight.name].derive(task)
    return Moments.of(weight.bind(now.double(), context), y)


def _store(weight: Weight, problems: list[Problem]) -> None:
    layer = weight.layer
    if has_part(layer, weight.name):
        for task, (down, up) in solve_beside(problems, layer.rank).items():
            set_part(layer, weight.name, task, unbound(layer, weight.name, task, down), up)
    target = weight.tensor
    matrix = weight.matrix(target.detach()).double().clone()
    bias = bias_name(weight)
    for problem in problems:
        w, biases = problem.solution()
        matrix[:, problem.outputs] = w
        if bias is not None:
            for task, value in biases.items():
                own = layer.private[bias].of(task)
                own.detach().view(matrix.shape[0], -1)[:, problem.outputs] = value.to(own)
    with torch.no_grad():
        target.copy_(weight.from_matrix(matrix))
