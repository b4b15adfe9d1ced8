"""How far stored models are from the models that they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from superpose.analysis.solved import Spectrum, ridges
from superpose.analysis.summed import (
    SAMPLED,
    among_sampled,
    expected_energy,
    sampled_outputs,
    sampled_rows,
)
from superpose.contexts import Identity
from superpose.contexts.base import Composition
from superpose.errors import SuperposeError
from superpose.model import Superposed, unsuperpose
from superpose.nn.layer import Layer
from superpose.nn.patterns import several_families
from superpose.packing.additive import Additive, rest
from superpose.packing.calibration import Rows
from superpose.packing.distil import logits
from superpose.packing.inputs import (
    Weight,
    evaluating,
    in_order,
    quiet_run,
    reaching,
    weights_of,
)
from superpose.packing.least_squares import Moments, scale
from superpose.packing.low_rank import beside
from superpose.packing.packed import Packed
from superpose.packing.solve import BIASES, Solve, bias_name, observe, read_out
from superpose.packing.sources import Source, Sources


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
    what the inputs of the tasks fill of it. A model that was trained is measured on the inputs that
    it has now, too, and has no prediction; nor has one that was packed by another method, a sum
    with composed contexts, or one that was solved with contexts that turn nothing or with low-rank
    parts.
    """
    names = packed.superposition.names
    if packed.superposition.complex_valued:
        family = several_families(packed.superposition.family)[0]
        raise SuperposeError(
            f"{family} makes the network complex-valued, and crosstalk is measured of real ones "
            "alone: use 'phase', which is complex superposition for a real network"
        )
    for task in names:
        if task not in models or task not in inputs:
            raise SuperposeError(f"task {task!r} needs its model and its inputs to be compared")
    sources = Sources({task: models[task] for task in names})
    weights = weights_of(packed)
    first = next(iter(names))
    method = packed.packing_method if isinstance(packed, Packed) else None
    families = several_families(packed.superposition.family)
    summed = isinstance(method, Additive)
    unpredictable = Composition if summed else Identity
    known = not any(isinstance(family, unpredictable) for family in families)
    beside_parts = not summed and packed.superposition.conversion.rank > 0
    predictable = isinstance(method, (Additive, Solve)) and known and not beside_parts
    rows = {task: Rows.of(task, inputs[task]) for task in names}
    with quiet_run(), evaluating(packed):
        ordered = in_order(sources.open(first), weights, rows[first][:2])
        found = [] if method is not None else _trained(packed, ordered, sources, rows, batch_size)
        for place, (weight, calls) in enumerate(ordered if method is not None else ()):
            done = [w for w, _ in ordered[:place]]
            if summed:
                one = _summed(packed, weight, calls, sources, rows, predictable)
            else:
                one = _solved(packed, weight, calls, done, sources, rows, batch_size)
            found.append(LayerCrosstalk(weight.plain, one[0], one[1] if predictable else None))
        noise, agreement = {}, {}
        for task in names:
            now, alone = _outputs(packed, sources.open(task), task, rows[task], batch_size)
            noise[task] = float((now - alone).square().sum() / alone.square().sum())
            agreement[task] = float((now.argmax(-1) == alone.argmax(-1)).double().mean())
    return Crosstalk(found, noise, agreement)


def _outputs(
    packed: Superposed, net: nn.Module, task: Any, rows: Rows, batch_size: int
) -> tuple[Tensor, Tensor]:
    now, alone = [], []
    for batch in rows.split(batch_size):
        now.append(logits(packed(*batch.positional, task=task, **batch.named)))
        alone.append(logits(batch.through(net)))
    return torch.cat(now), torch.cat(alone)


def _trained(
    model: Superposed,
    ordered: list[tuple[Weight, int]],
    sources: Sources,
    rows: dict[Any, Rows],
    batch_size: int,
) -> list[LayerCrosstalk]:
    """The noise of each layer on the inputs that it has now, in the network read out of the model.

    So it is that of all that the model computes with: bases, means, low-rank parts, contexts that
    were learned. A task in which a layer should give only zeros does not count, as below.
    """
    noise: list[list[float]] = [[] for _ in ordered]
    for task in model.superposition.names:
        now, alone = unsuperpose(model, task), sources.open(task)
        for shares, (weight, calls) in zip(noise, ordered, strict=True):
            error = energy = 0.0
            for seed, batch in enumerate(rows[task].split(batch_size)):
                y, wanted = (_given(net, weight, calls, batch, seed) for net in (now, alone))
                error += float((y - wanted).abs().square().sum())
                energy += float(wanted.abs().square().sum())
            shares += [error / energy] if energy else []
    return [
        LayerCrosstalk(weight.plain, sum(shares) / max(len(shares), 1), None)
        for shares, (weight, _) in zip(noise, ordered, strict=True)
    ]


def _given(net: nn.Module, weight: Weight, calls: int, rows: Rows, seed: int) -> Tensor:
    """What a weight of a plain network, and its bias, give for the rows; flat."""
    matrix = weight.matrix(net.get_parameter(weight.plain)).double()
    bias = getattr(net.get_submodule(weight.layer.path), BIASES.get(weight.name, ""), None)
    offset = None if bias is None else bias.view(matrix.shape[0], 1, -1)
    found = []
    for part in reaching(net, weight, calls, rows, {}, seed):
        y = part.x.double() @ matrix[:, part.outputs].mT
        found.append((y if offset is None else y + offset[..., part.outputs]).flatten())
    return torch.cat(found)


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
        read = read_out(done, number)
        net = sources.open(task)
        seen = observe(weight, calls, number, net, rows[task], read, batch_size)
        moments = [part.both for part in seen]
        low_rank = beside(weight.layer, weight.name, number)
        own_part = weight.matrix(low_rank) if isinstance(low_rank, Tensor) else low_rank
        whole, gives = scale(moments), any(both.energy.any() for both in moments)
        tasks += gives
        for place, (part, both) in enumerate(zip(seen, moments, strict=True)):
            w, left, fitted = (matrix + own_part)[:, part.outputs], both, both
            if bias is not None:
                own = weight.layer.private[bias].of(number).detach().double()
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
    packed: Superposed,
    weight: Weight,
    calls: int,
    sources: Sources,
    rows: dict[Any, Rows],
    predictable: bool,
) -> tuple[float, float]:
    """The same on the inputs that the layer had in the model alone."""
    names = packed.superposition.names
    pairing = weight.layer.pairing
    peers = [Weight(one, weight.name) for one in (pairing.layers if pairing else [weight.layer])]
    stored: dict[tuple[Any, Layer], Tensor] = {}  # by task and the layer that it is kept in
    for task, number in names.items():
        net = sources.open(task)
        for one in peers:
            stored[task, one.layer.slot(number)] = _some_outputs(one, net, number)
    measured = predicted = 0.0
    tasks = 0
    for task, number in names.items():
        net, slot = sources.open(task), weight.layer.slot(number)
        own = read_out([weight], number)[weight.plain]
        wanted = weight.matrix(net.get_parameter(weight.plain).detach().double())
        change = weight.matrix(own.double()) - wanted
        noisy, alone = sampled_outputs(change), sampled_outputs(wanted)
        error = expected = energy = 0.0
        for part in reaching(net, weight, calls, rows[task][:SAMPLED], {}, 0):
            x, some = sampled_rows(part.x.double()), among_sampled(part.outputs, change)
            error += float((x @ noisy[:, some].mT).square().sum())
            energy += float((x @ alone[:, some].mT).square().sum())
            others = [stored[other, slot][:, some] for other in names if other != task]
            expected += expected_energy(weight, others, x) if predictable else 0.0
        if energy:
            measured += error / energy
            predicted += expected / energy
            tasks += 1
    return measured / max(tasks, 1), predicted / max(tasks, 1)


def _some_outputs(weight: Weight, net: nn.Module, task: int) -> Tensor:
    """Of what a model stores in a weight."""
    stored = rest(weight.layer, weight.name, task, net)
    return sampled_outputs(weight.matrix(weight.layer.from_matrix(weight.name, stored)))
