"""Crosstalk: how far stored models are from the models that they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from superpose.analysis.solved import ridges, spectra
from superpose.analysis.summed import SAMPLED, sampled, share
from superpose.contexts import Identity
from superpose.contexts.base import Composition
from superpose.errors import SuperposeError
from superpose.model import Superposed, unsuperpose
from superpose.nn import Met
from superpose.packing import additive
from superpose.packing.calibration import Rows, logits
from superpose.packing.least_squares import scale
from superpose.packing.packed import SOLVE, Packed
from superpose.packing.solve import observe, read_out
from superpose.packing.sources import Source, Sources
from superpose.packing.weights import BIASES, Weight, in_order, linear_maps, product, reaching
from superpose.quiet import evaluating, quiet_run

Ordered = list[tuple[Weight, int]]  # weights as a run meets them, and how often
Energies = tuple[float, float]  # ‖y − wanted‖², ‖wanted‖²


@dataclass(frozen=True)
class LayerCrosstalk:
    """The noise of one layer, the mean over the tasks."""

    layer: str
    measured: float
    predicted: float | None


@dataclass(frozen=True)
class Crosstalk:
    """The noise of each layer and of the outputs, as shares of their energy."""

    layers: list[LayerCrosstalk]
    outputs: dict[Any, float]  # noise of the network's output, for each task
    agreement: dict[Any, float]  # how often the largest output is the same, for each task

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
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
    """Compare stored models with the models that they were, on inputs of each task.

    Where the weights are a sum, a layer is measured on the inputs that it had in the model alone,
    and predicted by Proposition 2. Where they were solved for, or trained, it is measured on the
    inputs that it has now; a solved layer is predicted from the spectra of the tasks' inputs.
    There is no prediction for models that were trained, for a sum with composed contexts, and for
    solved weights with identity contexts or low-rank parts.
    """
    known = packed.superposition
    if known.complex_valued:
        raise SuperposeError(
            f"{known.family} makes the network complex-valued, and crosstalk is measured of real "
            "ones alone: use 'phase', which is complex superposition for a real network"
        )
    for task in known.names:
        if task not in models or task not in inputs:
            raise SuperposeError(f"task {task!r} needs its model and its inputs to be compared")
    sources = Sources({task: models[task] for task in known.names})
    rows = {task: Rows.of(task, inputs[task]) for task in known.names}
    method = packed.method if isinstance(packed, Packed) else None
    summed = method not in (None, SOLVE)
    with quiet_run(), evaluating(packed):
        first = rows[next(iter(rows))][:2]
        ordered = in_order(sources.first(), linear_maps(packed), first)
        measured = _measured(packed, ordered, sources, rows, batch_size, summed)
        predicted: list[float] | list[None] = [None] * len(ordered)
        families = {type(weight.bound.context.family) for weight, _ in ordered}
        if summed and not any(issubclass(one, Composition) for one in families):
            predicted = [_summed(packed, *one, sources, rows) for one in ordered]
        elif method == SOLVE and Identity not in families and not known.options.rank:
            predicted = _solved(packed, ordered, sources, rows, batch_size, measured)
        layers = [
            LayerCrosstalk(weight.full_name, _mean(e / of for e, of in pairs if of), ahead)
            for (weight, _), pairs, ahead in zip(ordered, measured, predicted, strict=True)
        ]
        outputs, agreement = {}, {}
        for task in known.names:
            outputs[task], agreement[task] = _outputs(packed, sources, task, rows[task], batch_size)
    return Crosstalk(layers, outputs, agreement)


def _mean(noise: Iterable[float]) -> float:
    """The mean; 0 of nothing, where a layer should give only zeros in all tasks."""
    every = list(noise)
    return sum(every) / max(len(every), 1)


def _outputs(
    packed: Superposed, sources: Sources, task: Any, rows: Rows, batch_size: int
) -> tuple[float, float]:
    net, now, alone = sources.open(task), list[Tensor](), list[Tensor]()
    for batch in rows.split(batch_size):
        now.append(logits(packed(*batch.positional, task=task, **batch.named)))
        alone.append(logits(batch.through(net)))
    y, wanted = torch.cat(now), torch.cat(alone)
    noise = (y - wanted).square().sum() / wanted.square().sum()
    return float(noise), float((y.argmax(-1) == wanted.argmax(-1)).double().mean())


def _measured(
    packed: Superposed,
    ordered: Ordered,
    sources: Sources,
    rows: dict[Any, Rows],
    batch_size: int,
    summed: bool,
) -> list[list[Energies]]:
    """For each layer and task ‖y − wanted‖² and ‖wanted‖², in the network read out of the model."""
    found: list[list[Energies]] = [[] for _ in ordered]
    for task in packed.tasks:
        now, alone = unsuperpose(packed, task), sources.open(task)
        for pairs, (weight, calls) in zip(found, ordered, strict=True):
            error = energy = 0.0
            for seed, batch in enumerate(rows[task].split(batch_size)):
                was = reaching(alone, weight, calls, batch, {}, seed)
                met = was if summed else reaching(now, weight, calls, batch, {}, seed)
                wanted = _given(alone, weight, was)
                error += float((_given(now, weight, met) - wanted).square().sum())
                energy += float(wanted.square().sum())
            pairs.append((error, energy))
    return found


def _given(net: nn.Module, weight: Weight, inputs: list[Met]) -> Tensor:
    matrix, bias = weight.blocks(net.get_parameter(weight.full_name)), _bias(net, weight)
    return torch.cat([product(met, matrix, bias).flatten() for met in inputs])


def _bias(net: nn.Module, weight: Weight) -> Tensor | None:
    bias: Tensor | None = getattr(
        net.get_submodule(weight.layer.path), BIASES.get(weight.name, ""), None
    )
    return bias


def _summed(
    packed: Superposed, weight: Weight, calls: int, sources: Sources, rows: dict[Any, Rows]
) -> float:
    terms = {}
    for task in packed.tasks:
        term = additive.term(weight, sources.open(task), packed.private_tensors(task))
        terms[task] = sampled(weight.blocks(weight.bound.layout.from_matrix(term))).clone()
    noise = []
    for task in packed.tasks:
        net, others = sources.open(task), [term for one, term in terms.items() if one != task]
        met = reaching(net, weight, calls, rows[task][:SAMPLED], {}, 0)
        matrix = weight.blocks(net.get_parameter(weight.full_name))
        noise.append(share(weight, matrix, _bias(net, weight), others, met))
    return _mean(one for one in noise if one is not None)


def _solved(
    packed: Superposed,
    ordered: Ordered,
    sources: Sources,
    rows: dict[Any, Rows],
    batch_size: int,
    measured: list[list[Energies]],
) -> list[float]:
    predicted, done = [], list[Weight]()
    for (weight, calls), pairs in zip(ordered, measured, strict=True):
        blocks, wholes = [], []  # of each task, the spectra of all outputs and groups
        for task, number in packed.superposition.names.items():
            read, net = read_out(packed, done, task), sources.open(task)
            seen = observe(weight, calls, number, net, rows[task], read, batch_size)
            wholes.append(scale(one.both for one in seen))
            blocks.append(spectra(seen, wholes[-1], centred=weight.bias is not None))
        noise = [0.0] * len(blocks)
        for of_tasks in zip(*blocks, strict=True):
            others = ridges(torch.stack([one.values for one in of_tasks])).tolist()
            for place, (one, ridge) in enumerate(zip(of_tasks, others, strict=True)):
                noise[place] += one.noise(ridge)
        shares = zip(noise, wholes, pairs, strict=True)  # ‖wanted‖² has the base's outputs, too
        predicted.append(_mean(one * float(whole) / of for one, whole, (_, of) in shares if of))
        done.append(weight)
    return predicted
