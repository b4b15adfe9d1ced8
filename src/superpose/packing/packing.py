"""`pack`: models that exist already become one set of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from superpose.contexts import Family
from superpose.contexts.base import Drawn
from superpose.errors import SuperposeError
from superpose.model import Name, build, check_names, layers, several
from superpose.nn.convert import Conversion, check_skipped_apart
from superpose.nn.names import inside, joined
from superpose.nn.patterns import family_by_layer, several_families
from superpose.nn.statistics import Statistics, as_statistics
from superpose.packing.calibration import check_calibration
from superpose.packing.methods import PackingMethod, PackingOptions, known
from superpose.packing.packed import Packed
from superpose.packing.sorting import private_and_shared
from superpose.packing.sources import Source, Sources, checked


def pack(
    models: Mapping[Any, Source],
    family: str | Family | Mapping[str, str | Family] = "binary",
    *,
    method: str | PackingMethod = "solve",
    calibration: Mapping[Any, Any] | None = None,
    base: nn.Module | None = None,
    random_pairing: bool = False,
    rank: int = 0,
    seed: int = 0,
    private_layers: Iterable[str] = (),
    skip: Iterable[str] = (),
    conv: str = "kernel",
    batch_dim: int | None = None,
    batch_size: int = 256,
    finetune: int = 0,
    input_shape: tuple[int, ...] | None = None,
    progress: bool = False,
    recognise: bool | str | Statistics = False,
) -> Packed:
    """Store models of one architecture in one set of weights.

    `models` is a mapping from names to modules, or to functions that return one, which are called
    when it is needed: then no two models are in memory at a time. Methods, by name or as an object,
    which may be one of your own (see `PackingMethod`):

    - "solve" (default): in closed form, layer by layer, the weights whose read-outs do best on
      `calibration`, unlabelled inputs of each task: a tensor of rows, several tensors, a mapping
      of them, or a function that returns one of these. `finetune` adds so many steps of
      distillation on the same inputs. With a `base`, it is differences from it that are stored.
    - "sum": W = Σₖ Wₖ C(k)⁻¹, the paper's equation 1, for study; with a `base`, it is "delta".
    - "delta": one base for all, and the sum of the models' differences from it; without a `base`
      it is the models' mean. With `random_pairing` layers of one shape change places before they
      are summed, in an order drawn for each task, so that unrelated differences are added up.

    `rank=r` gives each model a low-rank part of its own, r·(inputs + outputs) numbers, in every
    layer that has more numbers than that, and superposes the rest: for models of which a few
    directions are most. To solve for the parts takes several times as long.

    `recognise=True` keeps statistics of each task's calibration inputs, so that
    `packed.recognise(x)` finds the task of x.

    Biases and norms are private to each task; what all models have in common is kept once;
    embeddings and tables of positions that differ become private. The result is a superposed
    model: it runs with a task, or one per row, saves, and counts its cost.

    >>> import torch
    >>> nets = {name: nn.Linear(32, 4) for name in ("a", "b")}
    >>> inputs = {name: torch.randn(64, 4) @ torch.randn(4, 32) for name in nets}
    >>> packed = pack(nets, calibration=inputs)
    >>> x = inputs["b"]
    >>> bool((packed(x, task="b") - nets["b"](x)).abs().max() < 1e-3)
    True
    """
    way = known(method)
    track = _bar if progress else (lambda steps, label: steps)
    options = PackingOptions(
        calibration, base, random_pairing, batch_size, finetune, input_shape, rank, track
    )
    way.check(options)
    chosen = family_by_layer(family)
    every = several_families(chosen)
    if every[0].complex_valued:
        raise SuperposeError(
            f"the family {family!r} makes networks complex-valued, so models could not come out as "
            "they went in: use 'phase', which is complex superposition for a real network"
        )
    if any(isinstance(one, Drawn) and one.learnable for one in every):
        raise SuperposeError(
            f"the weights of packed models are computed for contexts that stay as they are: leave "
            f"learnable out of {family!r}"
        )
    sources = Sources(models)
    check_names(list(sources.models))
    if calibration is not None:
        check_calibration(sources.models, calibration)
    kept = as_statistics(recognise)
    if kept is not None and calibration is None:
        raise SuperposeError(
            f"recognise={recognise!r}: tasks are recognised by their calibration inputs: give "
            "some, or call packed.remember(x, task=…) later"
        )
    base = way.base(sources, base)
    private, shared = private_and_shared(sources)
    private_layers, skip = several("private_layers", private_layers), several("skip", skip)
    check_skipped_apart(sources.open(next(iter(sources.models))), skip, private_layers)
    conversion = Conversion(
        "per-task",
        (*private_layers, *(name for name in private if not inside(name, private_layers))),
        (*skip, *shared),
        conv,
        batch_dim,
        base is not None,
        random_pairing,
        rank=rank,
        recognise=kept,
    )
    names: dict[Name, int] = {name: number for number, name in enumerate(sources.models)}
    packed = build(sources.open(next(iter(names))), chosen, names, seed, conversion, Packed)
    packed.packing_method = way
    packed.eval()
    _check_weights_apart(packed)
    for key in packed.summary().shared:
        if key in sources.differing:
            raise SuperposeError(
                f"skip: {key} differs between the models, so they cannot share it: take its layer "
                "out of skip"
            )
    _set_base(packed, base)
    for layer in layers(packed):
        for tensor in layer.contexts:
            getattr(layer, tensor).detach().zero_()
    way.fill(packed, sources, options)
    for name in names:
        packed.remember_calibration(name, calibration)
    return packed


def _bar(steps: Any, label: str) -> Any:
    from rich.progress import track

    return track(steps, label, transient=True)


def _check_weights_apart(packed: Packed) -> None:
    """One weight cannot be what two layers need, each with contexts of its own."""
    seen: dict[int, str] = {}
    for layer in layers(packed):
        for tensor in layer.contexts:
            name = joined(layer.path, tensor)
            other = seen.setdefault(id(layer.stored(tensor)), name)
            if other != name:
                raise SuperposeError(
                    f"{other} and {name} are one tensor, which cannot be packed for two layers at "
                    f"once: name {layer.path!r} in private_layers, or give it a copy"
                )


def _set_base(packed: Packed, base: nn.Module | None) -> None:
    if base is None:
        return
    state = checked("base", base, {})
    for layer in layers(packed):
        for tensor, own in layer.bases.items():
            name = joined(layer.path, tensor)
            if name not in state or state[name].shape != own.shape:
                raise SuperposeError(f"the base has no {name} like the models'")
            own.detach().copy_(state[name])
