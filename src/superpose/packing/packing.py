"""`pack`: models that exist already become one set of weights."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from superpose.contexts import Drawn, Family
from superpose.errors import SuperposeError, kind_of
from superpose.model import Name, Superposed, build, check_names, several
from superpose.nn import (
    Options,
    Statistics,
    as_statistics,
    check_skipped_apart,
    family_by_layer,
    inside,
    several_families,
)
from superpose.packing import additive
from superpose.packing.calibration import Rows, check_calibration, noise
from superpose.packing.distil import finetune as distil
from superpose.packing.packed import DELTA, METHODS, SOLVE, Packed
from superpose.packing.solve import solve
from superpose.packing.sorting import private_and_shared
from superpose.packing.sources import Source, Sources, checked
from superpose.packing.weights import bound_weights


def pack(
    models: Mapping[Any, Source],
    family: str | Family | Mapping[str, str | Family] = "binary",
    *,
    method: str = SOLVE,
    calibration: Mapping[Any, Any] | None = None,
    base: nn.Module | None = None,
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
    when it is needed: then no two models are in memory at a time. Methods:

    - "solve" (default): in closed form, layer by layer, the weights whose read-outs do best on
      `calibration`, unlabelled inputs of each task: a tensor of rows, several tensors, a mapping
      of them, or a function that returns one of these. `finetune` adds so many steps of
      distillation on the same inputs. With a `base`, differences from it are stored.
    - "sum": W = Σₖ Wₖ·C(k)⁻¹, the paper's equation 1, for study; with a `base`, it is "delta".
    - "delta": one base for all, and the sum of the models' differences from it; without a `base`
      it is the models' mean.

    `rank=r` gives each model a low-rank part, r·(inputs + outputs) private numbers, in every layer
    that has more numbers than that, and superposes the rest: for models of which a few directions
    are most. To solve for the parts takes several times as long.

    `recognise=True` keeps statistics of each task's calibration inputs, so that
    `packed.recognise(x)` finds the task of x.

    Biases and norms are private to each task; what is equal in all models is kept once; embeddings
    and tables of positions that differ become private. The result is a superposed model: it runs
    with a task, or one per row, saves, and counts its cost.

    >>> nets = {name: nn.Linear(32, 4) for name in ("a", "b")}
    >>> inputs = {name: torch.randn(64, 4) @ torch.randn(4, 32) for name in nets}
    >>> packed = pack(nets, calibration=inputs)
    >>> x = inputs["b"]
    >>> bool((packed(x, task="b") - nets["b"](x)).abs().max() < 1e-3)
    True
    """
    _check_method(method, finetune, base)
    chosen = family_by_layer(family)
    _check_family(family, several_families(chosen))
    sources = Sources(models)
    names: dict[Name, int] = {name: number for number, name in enumerate(sources.models)}
    check_names(list(names))
    if calibration is not None:
        check_calibration(names, calibration)
    elif recognise:
        raise SuperposeError(
            f"recognise={recognise!r}: tasks are recognised by their calibration inputs: give "
            "some, or call packed.remember(x, task=…) later"
        )
    if calibration is not None and method != SOLVE and not recognise:
        warnings.warn(
            f"calibration has no effect with method {method!r}: leave it out, or give "
            "recognise=True, which keeps statistics of it, or method='solve', which fits to it",
            stacklevel=2,
        )
    if method == DELTA and base is None:
        base = additive.mean(sources)
    private, shared = private_and_shared(sources)
    private_layers, skip = several("private_layers", private_layers), several("skip", skip)
    check_skipped_apart(sources.first(), skip, private_layers)
    options = Options(
        private_layers=(*private_layers, *(n for n in private if not inside(n, private_layers))),
        skip=(*skip, *shared),
        conv=conv,
        batch_dim=batch_dim,
        base=base is not None,
        rank=rank,
        recognise=as_statistics(recognise),
    )
    packed = build(_with_base(sources.first(), base), chosen, names, seed, options, Packed).eval()
    packed.method = method
    _prepare(packed, sources, base)
    track = _bar if progress else lambda steps, label: steps
    if method == SOLVE:
        given = calibration or noise(sources, seed, input_shape)
        solve(packed, sources, given, batch_size, partial(track, label="solve"))
        if finetune:
            bar = partial(track, label="finetune")
            distil(packed, sources, given, finetune, batch_size, bar)
    else:
        for name in track(list(names), label=method):
            additive.add(packed, name, sources.open(name))
    for name in names if recognise else ():
        rows = Rows.of(name, (calibration or {})[name])
        packed.remember(*rows.positional, task=name, **rows.named)
    return packed


def _bar(steps: Any, label: str) -> Any:
    from rich.progress import track

    return track(steps, label, transient=True)


def _check_method(method: str, finetune: int, base: Any) -> None:
    if method not in METHODS:
        raise SuperposeError(f"method={method!r}: use one of {', '.join(METHODS)}")
    if finetune < 0:
        raise SuperposeError(f"finetune={finetune}: it is a number of steps")
    if finetune and method != SOLVE:
        raise SuperposeError(
            f"finetune={finetune} is for method 'solve', and this one is {method!r}"
        )
    if isinstance(base, Superposed):
        raise SuperposeError("the base is superposed: give unsuperpose(base, task)")
    if base is not None and not isinstance(base, nn.Module):
        raise SuperposeError(
            f"base is {kind_of(base)}: give the network that the models were fine-tuned from, a "
            "module; a state dict goes into one with load_state_dict()"
        )


def _check_family(family: Any, families: list[Family]) -> None:
    for one in families:
        if one.complex_valued:
            raise SuperposeError(
                f"the family {family!r} makes networks complex-valued, so models could not come "
                "out as they went in: use 'phase', which is complex superposition for a real "
                "network"
            )
        if isinstance(one, Drawn) and one.learnable:
            raise SuperposeError(
                "the weights of packed models are computed for contexts that stay as they are: "
                f"leave learnable out of {family!r}"
            )


def _with_base(net: nn.Module, base: nn.Module | None) -> nn.Module:
    """A copy of a model with the tensors of the base, but those that have another shape there."""
    if base is None:
        return net
    state = checked("base", base, {})
    made = copy.deepcopy(net)
    shapes = {name: tensor.shape for name, tensor in made.state_dict().items()}
    fitting = {name: t for name, t in state.items() if shapes.get(name) == t.shape}
    made.load_state_dict(fitting, strict=False)
    return made


@torch.no_grad()
def _prepare(packed: Packed, sources: Sources, base: nn.Module | None) -> None:
    """Set bound weights to zero, and shared tensors to those of the models, not of the base."""
    seen: dict[int, str] = {}
    there = {} if base is None else base.state_dict()
    for weight in bound_weights(packed):
        name, stored = weight.full_name, weight.stored
        if base is not None and (name not in there or there[name].shape != stored.shape):
            raise SuperposeError(f"the base has no {name} like the models'")
        other = seen.setdefault(id(stored), name)
        if other != name:
            raise SuperposeError(
                f"{other} and {name} are one tensor, which cannot be packed for two layers at "
                f"once: name {weight.layer.path!r} in private_layers, or give it a copy"
            )
        stored.zero_()
    state, given = packed.state_dict(), sources.first().state_dict()
    for key in packed.summary().shared:
        if key in sources.differing:
            raise SuperposeError(
                f"skip: {key} differs between the models, so they cannot share it: take its layer "
                "out of skip"
            )
        if key in given:
            state[key].copy_(given[key])
