"""Method `solve`: layer by layer, the weights whose read-outs do best what the models' own did.

For one layer, with X the inputs that it sees in model k alone and X̂ those that it sees in the
packed network, whose earlier layers are packed already, so that errors do not pile up:

    minimise Σₖ ‖W·C(k)·X̂ₖ + bₖ − (Wₖ·Xₖ + bₖ⁰)‖² / ‖Wₖ·Xₖ + bₖ⁰‖² + ridge · ‖W‖²,

which needs no more of the inputs than A = Σₖ C·X̂ₖ·X̂ₖᵀ·Cᵀ and B = Σₖ (Wₖ·Xₖ + bₖ⁰)·X̂ₖᵀ·Cᵀ:
W = B·(A + ridge)⁻¹. With a base, W₀·X̂ₖ is taken from the outputs first; low-rank parts are in
`low_rank.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed
from superpose.nn import joined
from superpose.packing.calibration import Rows
from superpose.packing.least_squares import Moments, Problem
from superpose.packing.low_rank import solve_beside
from superpose.packing.private import part, set_part, set_private
from superpose.packing.sources import Sources
from superpose.packing.weights import Weight, in_order, linear_maps, product, reaching
from superpose.quiet import quiet_run

HELD_OUT = 10  # one row in so many chooses the ridge


def solve(
    packed: Superposed,
    sources: Sources,
    calibration: Mapping[Any, Any],
    batch_size: int,
    track: Any = iter,
) -> None:
    """Set the bound weights and the private tensors of all tasks of a packed model."""
    options, names = packed.superposition.options, packed.superposition.names
    if options.rank and options.conv == "channel":
        raise SuperposeError(
            f"rank={options.rank}: the low-rank part of a convolution whose channels are bound "
            "cannot be solved for: leave conv='channel' out, or pack by method 'delta'"
        )
    packed.begin(*names)
    for name in names:
        set_private(packed, name, sources.open(name))
    first, done = next(iter(names)), list[Weight]()
    with quiet_run():
        rows = Rows.of(first, calibration[first])[:2]
        for weight, calls in track(in_order(sources.first(), linear_maps(packed), rows)):
            apart = part(weight, packed.private_tensors(first)) is not None
            problems: list[Problem] = []
            for name, number in names.items():
                rows, read = Rows.of(name, calibration[name]), read_out(packed, done, name)
                seen = observe(weight, calls, number, sources.open(name), rows, read, batch_size)
                if not problems:
                    centre = weight.bias is not None
                    problems = [Problem(one.outputs, centre, apart) for one in seen]
                for problem, one in zip(problems, seen, strict=True):
                    problem.add(number, one.kept, one.held)
            _store(packed, weight, problems)
            done.append(weight)


def read_out(packed: Superposed, weights: Iterable[Weight], task: Name) -> dict[str, Tensor]:
    """W₀ + W·C(k) + Bₖ·Aₖ and bₖ of these weights, by their names in the plain network."""
    view, read = packed.view(task), dict[str, Tensor]()
    for weight in weights:
        layer = weight.layer
        names = [weight.name, *([weight.bias.rpartition(".")[2]] if weight.bias else [])]
        for name in names:
            read[joined(layer.path, name)] = layer.read(name, view.layers[layer.path]).detach()
    return read


@dataclass(frozen=True)
class Seen:
    """One task's moments of some outputs of a weight: of rows to fit, and of rows held out."""

    outputs: slice
    kept: Moments
    held: Moments

    @property
    def both(self) -> Moments:
        """The moments of all rows."""
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
    """Run a model's inputs through it as it was, and with the weights that were read out so far."""
    own = weight.blocks(net.get_parameter(weight.full_name))
    base = None if weight.base is None else weight.blocks(weight.base)
    bias = None if weight.bias is None else net.get_parameter(weight.bias).detach().double()
    seen: list[Seen] = []
    index = torch.arange(len(rows))
    held_out = index % HELD_OUT == HELD_OUT - 1
    for side in ("kept", "held"):
        for seed, batch in enumerate(rows[index[held_out == (side == "held")]].split(batch_size)):
            alone = reaching(net, weight, calls, batch, {}, seed)
            now = reaching(net, weight, calls, batch, read, seed) if read else alone
            seen = seen or [Seen(met.outputs, Moments(), Moments()) for met in alone]
            for place, (was, met) in enumerate(zip(alone, now, strict=True)):
                y = product(was, own, bias)
                if base is not None:
                    y = y - product(met, base, None)
                more = getattr(seen[place], side) + Moments.of(weight.bind(met.x.double(), task), y)
                seen[place] = replace(seen[place], **{side: more})
    return seen


@torch.no_grad()
def _store(packed: Superposed, weight: Weight, problems: list[Problem]) -> None:
    """Write W, the biases that go with it, and the low-rank parts."""
    names = packed.superposition.names
    tasks = {number: packed.private_tensors(name) for name, number in names.items()}
    if problems[0].apart:
        for task, (down, up) in solve_beside(problems, packed.superposition.options.rank).items():
            lead = down if weight.bound.grouped else down.squeeze(0)
            set_part(weight, tasks[task], weight.context(task, down).bind_weight(lead), up)
    matrix = weight.blocks(weight.stored).clone()
    for problem in problems:
        matrix[:, problem.outputs], biases = problem.solution()
        for task, value in biases.items() if weight.bias else ():
            bias = tasks[task][weight.bias or ""].detach()
            bias.view(len(matrix), -1)[:, problem.outputs] = value.to(bias)
    weight.stored.copy_(weight.bound.layout.from_blocks(matrix))
