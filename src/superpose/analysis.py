"""What to expect of stored models: crosstalk, measured and predicted, and plans before packing.

Noise is always a share of energy: ‖what a layer gives − what it should give‖² / ‖what it should‖².

For the sum of equation 1 the prediction is Proposition 2 (`Family.moments`), summed over the other
models. For `solve` it is this: the contexts turn the second moments Σₖ of the tasks' inputs
independently, so A = Σₖ C Σₖ Cᵀ is a sum of free matrices, and in the mean (A + λ)⁻¹ looks to
task k like (Σₖ + ωₖ)⁻¹: the others act as a ridge ωₖ, where (free additive convolution)

    tr (Σₖ + ωₖ)⁻¹ / M = m for every k,    Σₖ ωₖ = λ + (K − 1) / m.

What least squares cannot explain is then ‖Y‖² − tr B (Σₖ + ωₖ)⁻¹ Bᵀ with B = Y Xᵀ. It vanishes as
long as the ranks of all Σₖ together stay below M: that is the capacity of a layer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from superpose import contexts
from superpose.contexts import Family, Identity
from superpose.errors import SuperposeError
from superpose.model import Superposed, layers, superpose
from superpose.nn.layer import Layer
from superpose.store.distil import logits
from superpose.store.inputs import Part, Rows, Weight, in_order, quiet_run, reaching
from superpose.store.packed import METHODS, Packed
from superpose.store.solve import Moments, base_of, bias_name, observe, read_out, scale
from superpose.store.sources import Source, Sources

RIDGE = 1e-9  # of the mean eigenvalue, where a solve without one is meant
SAMPLED = 64  # outputs of a layer, and rows, that the moments of Proposition 2 are averaged over
STEPS = 56  # of a bisection: down to rounding

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spectrum:
    """One task's inputs of a layer, in the directions in which they vary, as shares of ‖Y‖²."""

    values: Tensor  # (M,) the eigenvalues of Σ = X Xᵀ
    explained: Tensor  # (M,) ‖B v‖² for each eigenvector v, B = Y Xᵀ
    energy: float  # of Y, without the means if a bias takes care of them

    @classmethod
    def of(cls, gram: Tensor, cross: Tensor, energy: Tensor, whole: Tensor) -> Spectrum:
        """From Σ (M, M), B (N, M) and the energy, divided by `whole`."""
        values, vectors = torch.linalg.eigh(gram / whole)
        explained = (cross @ vectors / whole).square().sum(0)
        return cls(values.clamp_min(0), explained, float(energy / whole))

    @property
    def rank(self) -> int:
        """How many directions hold 99 % of the inputs' energy."""
        held = self.values.flip(0).cumsum(0)
        return int((held < 0.99 * held[-1]).sum()) + 1

    def noise(self, ridge: float) -> float:
        """What least squares cannot explain when the other tasks act as this ridge."""
        floor = RIDGE * float(self.values.mean())
        return self.energy - float((self.explained / (self.values + ridge + floor)).sum())


def ridges(spectra: Tensor, copies: int = 1, room: int | None = None) -> Tensor:
    """ωₖ (K,): the ridge that the other tasks are to each, from eigenvalues (K, M).

    There are `copies` tasks of each kind, and `room` inputs if that is more than M.

    >>> ridges(torch.ones(3, 8)).round(decimals=4)  # inputs that fill the layer: K − 1
    tensor([2., 2., 2.], dtype=torch.float64)
    >>> bool(ridges(torch.tensor([[1.0, 0, 0, 0]]), copies=3) < 1e-6)  # 3 × 1 < 4: exact
    True
    """
    values = spectra.double().cpu().numpy()
    scale = float(values.mean()) or 1.0
    values = values / scale
    kinds, own = values.shape
    tasks, empty = copies * kinds, (room or own) - own

    def resolvent(log: Array) -> Array:
        ridge = np.exp(log)[:, None]
        return ((1 / (values + ridge)).sum(1) + empty / ridge[:, 0]) / (own + empty)

    def ridge(log: Array) -> Array:  # tr (Σ + ω)⁻¹ falls with ω
        wanted = np.exp(log)
        return np.exp(_root(lambda middle: resolvent(middle) - wanted, np.zeros(kinds)))

    def excess(log: Array) -> Array:  # Σ ω(m) − (K − 1) / m − λ falls with m
        return copies * ridge(log).sum() - (tasks - 1) / np.exp(log) - tasks * RIDGE

    def alone(log: Array) -> Array:  # the same for one kind, without the inner root
        return (tasks - 1) / resolvent(log) + tasks * RIDGE - tasks * np.exp(log)

    found = np.exp(_root(alone, np.zeros(1))) if kinds == 1 else ridge(_root(excess, np.zeros(1)))
    return torch.from_numpy(found * scale)


def _root(falling: Callable[[Array], Array], like: Array) -> Array:
    """Where functions that fall cross zero, by bisection."""
    low, high = like - 50.0, like + 50.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        above = falling(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class LayerCrosstalk:
    """The noise of one layer, the mean over the tasks."""

    layer: str
    measured: float
    predicted: float | None


@dataclass(frozen=True)
class Crosstalk:
    """What the stored models do to one another: in each layer, and in the end."""

    layers: list[LayerCrosstalk]
    outputs: dict[Any, float]  # noise of the network's output, for each task
    agreement: dict[Any, float]  # how often the largest output is the same, for each task

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [f"{'layer':<40}{'measured':>10}{'predicted':>11}"]
        for one in self.layers:
            predicted = "–" if one.predicted is None else f"{one.predicted:.4f}"
            rows.append(f"{one.layer:<40}{one.measured:>10.4f}{predicted:>11}")
        for task, noise in self.outputs.items():
            same = f"{100 * self.agreement[task]:.1f} % agree"
            rows.append(f"{f'output of {task!r}':<40}{noise:>10.4f}  {same}")
        return "\n".join(rows)


def crosstalk(
    packed: Superposed,
    models: Mapping[Any, Source],
    inputs: Mapping[Any, Any],
    *,
    batch_size: int = 256,
) -> Crosstalk:
    """How far stored models are from the models that they were, on inputs of each task.

    Where the weights are a sum, a layer is measured on the inputs that it had in the model alone,
    and predicted by Proposition 2; where they were solved, on those it has now, and predicted by
    the theory above. A model that was trained has no prediction, nor has one that was solved with
    contexts that turn nothing.
    """
    names = packed.superposition.names
    for task in names:
        if task not in models or task not in inputs:
            raise SuperposeError(f"task {task!r} needs its model and its inputs to be compared")
    sources = Sources({task: models[task] for task in names})
    weights = [Weight(layer, name) for layer in layers(packed) for name in layer.contexts]
    first = next(iter(names))
    method = packed.method if isinstance(packed, Packed) else None
    family = packed.superposition.family
    predictable = method in ("sum", "delta") or (method and not isinstance(family, Identity))
    rows = {task: Rows.of(task, inputs[task]) for task in names}
    was_training = packed.training
    packed.eval()
    with quiet_run():
        ordered = in_order(sources.open(first), weights, rows[first][:2])
        found = []
        for place, (weight, calls) in enumerate(ordered):
            done = [w for w, _ in ordered[:place]]
            if method in ("sum", "delta"):
                one = _summed(packed, weight, calls, sources, rows)
            else:
                one = _solved(packed, weight, calls, done, sources, rows, batch_size)
            found.append(LayerCrosstalk(weight.plain, one[0], one[1] if predictable else None))
        noise, agreement = {}, {}
        for task in names:
            now, alone = _outputs(packed, sources.open(task), task, rows[task], batch_size)
            noise[task] = float((now - alone).square().sum() / alone.square().sum())
            agreement[task] = float((now.argmax(-1) == alone.argmax(-1)).double().mean())
    packed.train(was_training)
    return Crosstalk(found, noise, agreement)


def _outputs(
    packed: Superposed, net: nn.Module, task: Any, rows: Rows, batch_size: int
) -> tuple[Tensor, Tensor]:
    now, alone = [], []
    for batch in rows.split(batch_size):
        now.append(logits(packed(*batch.positional, task=task, **batch.named)))
        alone.append(logits(batch.through(net)))
    return torch.cat(now), torch.cat(alone)


def _solved(
    packed: Superposed,
    weight: Weight,
    calls: int,
    done: list[Weight],
    sources: Sources,
    rows: dict[Any, Rows],
    batch_size: int,
) -> tuple[float, float]:
    """Measured and predicted noise of a layer on the inputs that it has in the packed network.

    A task in which the layer should give only zeros has no energy, so no noise that is a share of
    it: the mean is over the others.
    """
    matrix = weight.matrix(weight.tensor.detach().double())
    bias = bias_name(weight)
    measured, tasks = 0.0, 0
    blocks: dict[tuple[int, int], list[Spectrum]] = {}  # by part and group, one for each task
    for task, number in packed.superposition.names.items():
        read = read_out(packed, done, number)
        seen = observe(
            packed, weight, calls, number, sources.open(task), rows[task], read, batch_size
        )
        moments = [part.kept + part.held if part.held.rows else part.kept for part in seen]
        whole, gives = scale(moments), any(both.energy.any() for both in moments)
        tasks += gives
        for place, (part, both) in enumerate(zip(seen, moments, strict=True)):
            w, left, fitted = matrix[:, part.outputs], both, both
            if bias is not None:
                own = weight.layer.private_tensors()[bias].of(number).detach().double()
                left = _without(both, own.view(matrix.shape[0], -1)[:, part.outputs])
                fitted = both.centred()
            error = left.energy.sum() - 2 * (w * left.cross).sum() + ((w @ left.gram) * w).sum()
            measured += float(error / whole) if gives else 0.0
            for group in range(len(w)):
                one = (fitted.gram[group], fitted.cross[group], fitted.energy[group])
                blocks.setdefault((place, group), []).append(Spectrum.of(*one, whole))
    return measured / max(tasks, 1), _unexplained(blocks.values()) / max(tasks, 1)


def _unexplained(blocks: Iterable[list[Spectrum]]) -> float:
    """The predicted noise of all tasks, summed over parts and groups."""
    noise = 0.0
    for spectra in blocks:
        others = ridges(torch.stack([one.values for one in spectra])).tolist()
        noise += sum(one.noise(ridge) for one, ridge in zip(spectra, others, strict=True))
    return noise


def _without(moments: Moments, bias: Tensor) -> Moments:
    """The moments of y − bias, for a bias (groups, outputs)."""
    cross = moments.cross - bias.unsqueeze(-1) * moments.x.unsqueeze(-2)
    energy = moments.energy - 2 * (bias * moments.y).sum(-1) + moments.rows * bias.square().sum(-1)
    return replace(moments, cross=cross, energy=energy)


def _summed(
    packed: Superposed, weight: Weight, calls: int, sources: Sources, rows: dict[Any, Rows]
) -> tuple[float, float]:
    """The same on the inputs that the layer had in the model alone."""
    names = packed.superposition.names
    pairing = weight.layer.pairing
    peers = [Weight(one, weight.name) for one in (pairing.layers if pairing else [weight.layer])]
    stored: dict[tuple[Any, Layer], Tensor] = {}  # by task and the layer that it is kept in
    for task, number in names.items():
        net = sources.open(task)
        for one in peers:
            stored[task, one.layer.slot(number)] = _some_outputs(packed, one, net)
    family = next(iter(weight.layer.contexts.values())).family
    measured = predicted = 0.0
    tasks = 0
    for task, number in names.items():
        net, slot = sources.open(task), weight.layer.slot(number)
        own = read_out(packed, [weight], number)[weight.plain]
        wanted = weight.matrix(net.get_parameter(weight.plain).detach().double())
        change = weight.matrix(own.double()) - wanted
        noisy, alone = _sampled(change), _sampled(wanted)
        error = expected = energy = 0.0
        for part in reaching(net, weight, calls, rows[task][:SAMPLED], {}, 0):
            x, some = _rows_of(part.x.double()), _among_sampled(part.outputs, change)
            error += float((x @ noisy[:, some].mT).square().sum())
            energy += float((x @ alone[:, some].mT).square().sum())
            others = [stored[other, slot][:, some] for other in names if other != task]
            expected += _expected(family, weight, others, x)
        if energy:
            measured += error / energy
            predicted += expected / energy
            tasks += 1
    return measured / max(tasks, 1), predicted / max(tasks, 1)


def _expected(family: Family, weight: Weight, others: Iterable[Tensor], x: Tensor) -> float:
    """E ‖Σ_s w_s C(s)⁻¹ C(k) x‖² for weights (groups, outputs, M) and rows x (groups, rows, M)."""
    dim = weight.layer.contexts[weight.name].dim
    mean: Any = 0.0
    variance = 0.0
    for w in others:
        if dim == x.shape[-1]:
            one, more = family.moments(w.unsqueeze(2), x.unsqueeze(1))
        else:  # channels are bound, the same for each position; positions are added up
            w_at, x_at = (side.unflatten(-1, (dim, -1)).mT for side in (w, x))
            one, more = family.moments(w_at.unsqueeze(2), x_at.unsqueeze(1))
            one = one.sum(-1)
        mean = mean + one
        variance += float(more.sum())
    return (
        float(abs(mean) ** 2 if isinstance(mean, float) else mean.abs().square().sum()) + variance
    )


def _some_outputs(packed: Superposed, weight: Weight, net: nn.Module) -> Tensor:
    """Of what a model stores in a weight."""
    base = base_of(packed, weight)
    own = net.get_parameter(weight.plain).detach().double()
    return _sampled(weight.matrix(own if base is None else own - base.detach()))


def _sampled(matrix: Tensor) -> Tensor:
    """Evenly spaced outputs of a matrix (groups, outputs, inputs)."""
    return matrix[:, :: _stride(matrix.shape[1])]


def _among_sampled(outputs: slice, matrix: Tensor) -> slice:
    """Which of a matrix's sampled outputs are among these."""
    start, stop, _ = outputs.indices(matrix.shape[1])
    step = _stride(matrix.shape[1])
    return slice(-(-start // step), -(-stop // step))


def _rows_of(x: Tensor) -> Tensor:
    """Evenly spaced rows of inputs (groups, rows, features)."""
    return x[:, :: _stride(x.shape[1])]


def _stride(count: int) -> int:
    """The step that takes at most SAMPLED of so many."""
    return -(-count // SAMPLED)


@dataclass(frozen=True)
class LayerPlan:
    """What one layer does when so many models are stored in it."""

    layer: str
    inputs: int
    rank: int  # directions that one task's inputs fill
    noise: float  # share of the output's energy that is noise
    width: int  # inputs it should have for the noise that is wanted

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

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        found = asdict(self) | {"noise": self.noise, "bottleneck": self.bottleneck.layer}
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
        return "\n".join(lines)


def plan(
    net: nn.Module,
    tasks: int,
    family: str | Family = "binary",
    *,
    method: str = "solve",
    inputs: Any = None,
    rank: int | None = None,
    noise: float = 0.05,
    private_layers: Iterable[str] = (),
    skip: Iterable[str] = (),
    batch_size: int = 256,
) -> Plan:
    """What storing `tasks` models like `net` will do to them, before any is packed.

    `inputs` are rows of its input, as for `pack`; without them each layer's inputs are taken to
    fill `rank` directions evenly, or all of them, which is the worst case. The width for the
    `noise` that is wanted supposes that a wider layer's inputs fill the same directions.
    `private_layers` and `skip` are those of `pack`.

    >>> found = plan(nn.Sequential(nn.Linear(64, 8)), tasks=4, rank=15)
    >>> round(found.noise, 6)  # 4 × 15 directions fit into 64
    0.0
    >>> plan(nn.Sequential(nn.Linear(64, 8)), tasks=4, rank=32, noise=0.01).layers[0].width
    127
    """
    if tasks < 1:
        raise SuperposeError(f"tasks={tasks}: plan for at least one")
    if method not in METHODS or method == "delta":
        raise SuperposeError(f"method={method!r}: a plan is for 'solve' or 'sum'")
    if rank is not None and rank < 1:
        raise SuperposeError(f"rank={rank}: inputs fill at least one direction")
    if not 0 < noise < 1:
        raise SuperposeError(f"noise={noise}: the share of noise wanted is between 0 and 1")
    chosen = contexts.family(family)
    name = family if isinstance(family, str) else type(family).__name__
    if method == "solve" and isinstance(chosen, Identity):
        raise SuperposeError("the family 'identity' cannot tell models apart: plan for another")
    model = superpose(net, chosen, tasks=1, private_layers=private_layers, skip=skip)
    weights = [Weight(layer, tensor) for layer in layers(model) for tensor in layer.contexts]
    planned = []
    with quiet_run():
        for seen in _observed(net, model, weights, inputs, rank, batch_size):
            make = _plan_solved if method == "solve" else _plan_summed
            planned.append(make(seen, tasks, noise))
    cost = model.cost()
    stored = cost.shared_bytes + tasks * cost.private_bytes_per_task
    return Plan(tasks, name, method, noise, planned, stored, tasks * cost.plain_bytes)


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
        seen = observe(model, weight, calls, 0, plain, rows, {}, batch_size)
        moments = [part.kept + part.held if part.held.rows else part.kept for part in seen]
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
    values = torch.zeros(size, dtype=torch.float64)
    values[size - filled :] = 1.0
    spectrum = Spectrum(values, values / filled / groups, 1 / groups)
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(size, filled, generator=generator).double()).Q
    x = torch.randn(SAMPLED, filled, generator=generator).double() @ directions.T
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
    return LayerPlan(seen.weight.plain, size, seen.rank, max(own, 0.0), high)


def _plan_summed(seen: Observed, tasks: int, wanted: float) -> LayerPlan:
    weight, matrix = seen.weight, seen.matrix
    family = weight.layer.contexts[weight.name].family
    sampled = _sampled(matrix)
    expected = energy = 0.0
    for part in seen.parts:
        x = _rows_of(part.x.double())
        w = sampled[:, _among_sampled(part.outputs, matrix)]
        energy += float((x @ w.mT).square().sum())
        expected += _expected(family, weight, [w], x)
    noise = (tasks - 1) * expected / energy if energy else 0.0
    size = matrix.shape[-1]
    width = math.ceil(size * max(1.0, noise / wanted))
    return LayerPlan(weight.plain, size, seen.rank, noise, width)
