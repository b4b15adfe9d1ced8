"""Plans: the noise and the bytes of stored models, before any is packed."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from superpose import contexts
from superpose.analysis.solved import Spectrum, ridges, spectra
from superpose.analysis.summed import SAMPLED, sampled, share
from superpose.contexts import Family, Identity
from superpose.errors import SuperposeError
from superpose.model import Superposed, labels_of, superpose
from superpose.nn import Met
from superpose.packing.calibration import Rows
from superpose.packing.least_squares import scale
from superpose.packing.packed import SOLVE, SUM
from superpose.packing.solve import observe
from superpose.packing.weights import Weight, in_order, linear_maps, reaching
from superpose.quiet import quiet_run

SMALL = 33  # inputs: a layer with fewer cannot keep models apart, and costs little


@dataclass(frozen=True)
class LayerPlan:
    """The noise of one layer when so many models are stored in it."""

    layer: str
    inputs: int
    rank: int  # directions that one task's inputs fill
    noise: float  # share of the output's energy that is noise
    width: int  # inputs it should have for the noise that is wanted
    numbers: int  # of its weight, which a task would store if the layer were its own


@dataclass(frozen=True)
class Plan:
    """The noise of each layer of a network that stores so many models, and the bytes."""

    tasks: int
    family: str
    method: str
    wanted: float
    layers: list[LayerPlan]
    stored_bytes: int
    separate_bytes: int

    @property
    def noise(self) -> float:
        """The noise of the noisiest layer."""
        return self.bottleneck.noise

    @property
    def bottleneck(self) -> LayerPlan:
        """The layer with the most noise."""
        return max(self.layers, key=lambda layer: layer.noise)

    @property
    def small(self) -> list[LayerPlan]:
        """Layers that are noisier than wanted, and have few inputs: `min_inputs` is for them."""
        return [one for one in self.layers if one.inputs < SMALL and one.noise > self.wanted]

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        found = asdict(self) | {"noise": self.noise, "bottleneck": self.bottleneck.layer}
        found["small"] = [one.layer for one in self.small]
        return found

    def __str__(self) -> str:
        lines = [
            f"{self.tasks} models, {self.family} contexts, method {self.method}: "
            f"noise up to {self.noise:.4f} of a layer's energy",
            f"{'layer':<36}{'inputs':>8}{'rank':>8}{'noise':>9}{f'width for {self.wanted:g}':>18}",
        ]
        for one in self.layers:
            lines.append(
                f"{one.layer:<36}{one.inputs:>8}{one.rank:>8}{one.noise:>9.4f}{one.width:>18}"
            )
        ratio = self.separate_bytes / self.stored_bytes
        lines += [
            f"the bottleneck is {self.bottleneck.layer}",
            f"{self.stored_bytes:,} bytes stored, {self.separate_bytes:,} as separate files: "
            f"{ratio:.1f} times less",
        ]
        if self.small:
            numbers = sum(one.numbers for one in self.small)
            names = ", ".join(one.layer for one in self.small)
            lines.append(
                f"min_inputs={SMALL} of superpose() gives every task its own of {names}: "
                f"{numbers:,} numbers a task"
            )
        return "\n".join(lines)


def plan(
    net: nn.Module,
    family: str | Family = "binary",
    *,
    tasks: int | Iterable[str],
    method: str = "solve",
    inputs: Any = None,
    rank: int | None = None,
    noise: float = 0.05,
    private_layers: Iterable[str] = (),
    skip: Iterable[str] = (),
    min_inputs: int = 0,
    batch_size: int = 256,
) -> Plan:
    """Predict the noise and the bytes of `tasks` stored models like `net`.

    `tasks` is their number, or their names. `inputs` are rows of its input, as for `pack`; without
    them each layer's inputs are taken to fill `rank` directions evenly, or all of them, which is
    the worst case. The width for the `noise` that is wanted supposes that a wider layer's inputs
    fill the same directions. `private_layers` and `skip` are those of `pack`, `min_inputs` that of
    `superpose`. The plan tells which layer is the bottleneck, and which have so few inputs that
    each task should have its own.

    >>> found = plan(nn.Sequential(nn.Linear(64, 8)), tasks=4, rank=15)
    >>> round(found.noise, 6)  # 4 × 15 directions fit into 64
    0.0
    >>> plan(nn.Sequential(nn.Linear(64, 8)), tasks=4, rank=32, noise=0.01).layers[0].width
    127
    """
    if isinstance(tasks, int) and tasks < 1:
        raise SuperposeError(f"tasks={tasks}: plan for at least one")
    count = len(labels_of(tasks))
    if isinstance(net, Superposed):
        raise SuperposeError("the model is superposed: plan for unsuperpose(model, task)")
    if method not in (SOLVE, SUM):
        raise SuperposeError(f"method={method!r}: a plan is for 'solve' or 'sum'")
    if rank is not None and rank < 1:
        raise SuperposeError(f"rank={rank}: inputs fill at least one direction")
    if not 0 < noise < 1:
        raise SuperposeError(f"noise={noise}: the share of noise wanted is between 0 and 1")
    chosen = contexts.family(family)
    name = family if isinstance(family, str) else type(family).__name__
    if chosen.complex_valued:
        raise SuperposeError(f"the family {name!r} cannot be packed: plan for 'phase' instead")
    if method == SOLVE and isinstance(chosen, Identity):
        raise SuperposeError("the family 'identity' cannot tell models apart: plan for another")
    model = superpose(
        net,
        chosen,
        tasks=1,
        private_layers=private_layers,
        skip=skip,
        min_inputs=min_inputs,
        base=False,
        bind_frozen=True,
    )
    make = _plan_solved if method == SOLVE else _plan_summed
    with quiet_run():
        seen = _observed(copy.deepcopy(net).eval(), linear_maps(model), inputs, rank, batch_size)
        planned = [make(one, count, noise) for one in seen]
    cost = model.cost()
    stored = cost.shared_bytes + count * cost.private_bytes_per_task
    return Plan(count, name, method, noise, planned, stored, count * cost.plain_bytes)


class _Observed(NamedTuple):
    """A layer before anything is packed."""

    weight: Weight
    matrix: Tensor  # (groups, outputs, inputs)
    bias: Tensor | None
    spectra: list[Spectrum]  # one for each group of each part
    inputs: list[Met]  # some rows


def _observed(
    net: nn.Module, weights: list[Weight], inputs: Any, rank: int | None, batch_size: int
) -> Iterator[_Observed]:
    rows = None if inputs is None else Rows.of("plan", inputs)
    ordered = [(one, 0) for one in weights] if rows is None else in_order(net, weights, rows[:2])
    for weight, calls in ordered:
        matrix = weight.blocks(net.get_parameter(weight.full_name))
        if rows is None:
            yield _Observed(weight, matrix, None, *_supposed(matrix, rank))
            continue
        bias = None if weight.bias is None else net.get_parameter(weight.bias)
        seen = observe(weight, calls, 0, net, rows, {}, batch_size)
        whole = scale(one.both for one in seen)
        met = reaching(net, weight, calls, rows[:SAMPLED], {}, 0)
        yield _Observed(weight, matrix, bias, spectra(seen, whole, bias is not None), met)


def _supposed(matrix: Tensor, rank: int | None) -> tuple[list[Spectrum], list[Met]]:
    """Inputs that fill `rank` directions of a layer's evenly, or all of them."""
    groups, _, size = matrix.shape
    filled = min(rank or size, size)
    values = matrix.new_zeros(size)
    values[size - filled :] = 1.0
    spectrum = Spectrum(values, values / filled / groups, 1 / groups)
    generator = torch.Generator().manual_seed(0)
    sizes = ((size, filled), (SAMPLED, filled))
    drawn = [torch.randn(s, generator=generator, device=generator.device) for s in sizes]
    directions, x = (numbers.to(matrix) for numbers in drawn)
    x = x @ torch.linalg.qr(directions).Q.T
    return [spectrum] * groups, [Met(slice(None), x.expand(groups, -1, -1))]


def _plan_solved(seen: _Observed, tasks: int, wanted: float) -> LayerPlan:
    def noise(room: int) -> float:
        every = ((one, ridges(one.values.unsqueeze(0), tasks, room)) for one in seen.spectra)
        return sum(one.noise(float(ridge)) for one, ridge in every)

    size = seen.matrix.shape[-1]
    now, high = noise(size), size
    while noise(high) > wanted and high < size * tasks:
        high *= 2
    low = high // 2 if high > size else size
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if noise(middle) <= wanted else (middle + 1, high)
    return _layer_plan(seen, max(now, 0.0), high)


def _plan_summed(seen: _Observed, tasks: int, wanted: float) -> LayerPlan:
    one = share(seen.weight, seen.matrix, seen.bias, [sampled(seen.matrix)], seen.inputs)
    noise = (tasks - 1) * (one or 0.0)
    return _layer_plan(seen, noise, math.ceil(seen.matrix.shape[-1] * max(1.0, noise / wanted)))


def _layer_plan(seen: _Observed, noise: float, width: int) -> LayerPlan:
    rank = max(one.rank for one in seen.spectra)
    size, numbers = seen.matrix.shape[-1], seen.matrix.numel()
    return LayerPlan(seen.weight.full_name, size, rank, noise, width, numbers)
