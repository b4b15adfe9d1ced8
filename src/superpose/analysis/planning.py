"""What storing models will do to them, before any is packed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from superpose import contexts
from superpose.analysis.solved import Spectrum, ridges
from superpose.analysis.summed import (
    SAMPLED,
    among_sampled,
    expected_energy,
    sampled_outputs,
    sampled_rows,
)
from superpose.contexts import Family, Identity
from superpose.errors import SuperposeError
from superpose.model import Superposed, labels_of, superpose
from superpose.packing.calibration import Rows
from superpose.packing.inputs import Part, Weight, in_order, quiet_run, reaching, weights_of
from superpose.packing.least_squares import scale
from superpose.packing.solve import bias_name, observe

SMALL = 33  # inputs: a layer with fewer cannot keep models apart, and costs little


@dataclass(frozen=True)
class LayerPlan:
    """What one layer does when so many models are stored in it."""

    layer: str
    inputs: int
    rank: int  # directions that one task's inputs fill
    noise: float  # share of the output's energy that is noise
    width: int  # inputs it should have for the noise that is wanted
    numbers: int  # of its weight, which a task would store if the layer were its own

    @property
    def signal_to_noise(self) -> float:
        """In decibels."""
        return -10 * math.log10(max(self.noise, 1e-12))


@dataclass(frozen=True)
class Plan:
    """What to expect of a network that holds so many models, and what it costs."""

    tasks: int
    family: str
    method: str
    wanted: float
    layers: list[LayerPlan]
    stored_bytes: int
    separate_bytes: int

    @property
    def noise(self) -> float:
        """That of the noisiest layer."""
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
        """All of it, for JSON."""
        found = asdict(self) | {"noise": self.noise, "bottleneck": self.bottleneck.layer}
        found["small"] = [one.layer for one in self.small]
        for described, layer in zip(found["layers"], self.layers, strict=True):
            described["signal_to_noise_db"] = layer.signal_to_noise
        return found

    def __str__(self) -> str:
        lines = [
            f"{self.tasks} models, {self.family} contexts, method {self.method}: "
            f"noise up to {self.noise:.4f} of a layer's energy",
            f"{'layer':<36}{'inputs':>8}{'rank':>8}{'noise':>9}{'dB':>7}"
            f"{f'width for {self.wanted:g}':>18}",
        ]
        for one in self.layers:
            lines.append(
                f"{one.layer:<36}{one.inputs:>8}{one.rank:>8}{one.noise:>9.4f}"
                f"{one.signal_to_noise:>7.1f}{one.width:>18}"
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
    """What storing `tasks` models like `net` will do to them, before any is packed.

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
    if method not in PLANS:
        raise SuperposeError(f"method={method!r}: a plan is for 'solve' or 'sum'")
    make, meaningless = PLANS[method]
    if rank is not None and rank < 1:
        raise SuperposeError(f"rank={rank}: inputs fill at least one direction")
    if not 0 < noise < 1:
        raise SuperposeError(f"noise={noise}: the share of noise wanted is between 0 and 1")
    chosen = contexts.family(family)
    name = family if isinstance(family, str) else type(family).__name__
    if chosen.complex_valued:
        raise SuperposeError(f"the family {name!r} cannot be packed: plan for 'phase' instead")
    if isinstance(chosen, meaningless):
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
    weights = weights_of(model)
    planned = []
    with quiet_run():
        for seen in _observed(net, model, weights, inputs, rank, batch_size):
            planned.append(make(seen, count, noise))
    cost = model.cost()
    stored = cost.shared_bytes + count * cost.private_bytes_per_task
    return Plan(count, name, method, noise, planned, stored, count * cost.plain_bytes)


class Observed(NamedTuple):
    """What is known of a layer before anything is packed."""

    weight: Weight
    matrix: Tensor  # (groups, outputs, inputs)
    spectra: list[Spectrum]  # one for each group of each part
    parts: list[Part]  # some rows of its inputs

    @property
    def rank(self) -> int:
        """Directions that one task's inputs fill."""
        return max(one.rank for one in self.spectra)


def _observed(
    net: nn.Module,
    model: Superposed,
    weights: list[Weight],
    inputs: Any,
    rank: int | None,
    batch_size: int,
) -> Iterator[Observed]:
    """Each layer, on inputs that are given or supposed."""
    plain = copy.deepcopy(net).eval()

    def matrix(weight: Weight) -> Tensor:
        return weight.matrix(plain.get_parameter(weight.plain).detach().double())

    if inputs is None:
        for weight in weights:
            yield Observed(weight, matrix(weight), *_supposed(matrix(weight), rank))
        return
    rows = Rows.of("plan", inputs)
    for weight, calls in in_order(plain, weights, rows[:2]):
        seen = observe(weight, calls, 0, plain, rows, {}, batch_size)
        moments = [part.both for part in seen]
        whole = scale(moments)
        spectra = []
        for both in moments:
            fitted = both.centred() if bias_name(weight) else both
            blocks = zip(fitted.gram, fitted.cross, fitted.energy, strict=True)
            spectra += [Spectrum.of(*block, whole) for block in blocks]
        parts = reaching(plain, weight, calls, rows[:SAMPLED], {}, 0)
        yield Observed(weight, matrix(weight), spectra, parts)


def _supposed(matrix: Tensor, rank: int | None) -> tuple[list[Spectrum], list[Part]]:
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
    return [spectrum] * groups, [Part(slice(None), x.expand(groups, -1, -1))]


def _plan_solved(seen: Observed, tasks: int, wanted: float) -> LayerPlan:
    def noise(room: int) -> float:
        """What all groups cannot explain when each has so many inputs."""
        return sum(
            one.noise(float(ridges(one.values.unsqueeze(0), tasks, room))) for one in seen.spectra
        )

    size = seen.matrix.shape[-1]
    own, high = noise(size), size
    while noise(high) > wanted and high < size * tasks:
        high *= 2
    low = high // 2 if high > size else size
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if noise(middle) <= wanted else (middle + 1, high)
    return LayerPlan(seen.weight.plain, size, seen.rank, max(own, 0.0), high, seen.matrix.numel())


def _plan_summed(seen: Observed, tasks: int, wanted: float) -> LayerPlan:
    weight, matrix = seen.weight, seen.matrix
    sampled = sampled_outputs(matrix)
    expected = energy = 0.0
    for part in seen.parts:
        x = sampled_rows(part.x.double())
        w = sampled[:, among_sampled(part.outputs, matrix)]
        energy += float((x @ w.mT).square().sum())
        expected += expected_energy(weight, [w], x)
    noise = (tasks - 1) * expected / energy if energy else 0.0
    size = matrix.shape[-1]
    width = math.ceil(size * max(1.0, noise / wanted))
    return LayerPlan(weight.plain, size, seen.rank, noise, width, matrix.numel())


PLANS: dict[str, tuple[Callable[[Observed, int, float], LayerPlan], tuple[type[Family], ...]]] = {
    "solve": (_plan_solved, (Identity,)),
    "sum": (_plan_summed, ()),
}
"""How a method's layers are planned, and the families with which it cannot tell models apart."""
