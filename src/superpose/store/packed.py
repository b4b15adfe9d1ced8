"""Offline storage: models that exist already become one set of weights, and come out again."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from superpose import contexts
from superpose.contexts import Family
from superpose.contexts.base import Drawn
from superpose.errors import SuperposeError
from superpose.model import Name, Superposed, build, check_names, layers, several, unsuperpose
from superpose.nn.convert import Conversion
from superpose.nn.forms import kept
from superpose.nn.layer import CONTEXT
from superpose.nn.names import inside, joined
from superpose.store.distil import finetune as distil
from superpose.store.inputs import evaluating
from superpose.store.solve import solve
from superpose.store.sources import Source, Sources, checked, opened, shape_of

METHODS = ("solve", "sum", "delta")
NOISE_ROWS = 4000  # per task, where there are no calibration inputs


class Packed(Superposed):
    """A superposed model whose weights were computed from models, not trained."""

    method: str

    def add(
        self,
        name: str,
        model: Source,
        calibration: Mapping[Any, Any] | None = None,
        *,
        batch_size: int = 256,
        finetune: int = 0,
    ) -> None:
        """Store one more model.

        With `sum` and `delta` the result is that of packing all of them from the start. With
        `solve` the weights are found again from the calibration inputs of all tasks, the models
        stored before being read out of the weights as they are, so it is not quite the same.
        """
        added = self._check(name, opened(name, model))
        self._check_solvable(calibration)
        if self.method != "solve":
            self.add_task(name)
            self._set(name, added)
            return
        after = copy.deepcopy(self)
        after.add_task(name)
        after._solve({**self._models(), name: added}, calibration, batch_size, finetune)
        self.add_task(name)
        self.load_state_dict(after.state_dict())

    def remove(self, name: Name, model: Source | None = None) -> None:
        """Forget a model. With `sum` and `delta`, given the model, its term is subtracted too.

        Otherwise the weights stay as they are, and so do the outputs of the others, bit for bit.
        """
        if model is not None and self.method == "solve":
            raise SuperposeError(
                "method 'solve' stores no term that could be subtracted: remove a task by its "
                "name alone"
            )
        number = self.superposition.number(name)
        removed = None if model is None else self._check(name, opened(name, model))
        self.remove_task(name)
        if removed is not None:
            self._add_term(number, removed, -1)

    def replace(
        self,
        name: Name,
        model: Source,
        old: Source | None = None,
        calibration: Mapping[Any, Any] | None = None,
        *,
        batch_size: int = 256,
        finetune: int = 0,
    ) -> None:
        """Store another model under a name; with `sum` and `delta` in place of the `old` one."""
        new = self._check(name, opened(name, model))
        self._check_solvable(calibration)
        if self.method != "solve":
            if old is None:
                raise SuperposeError(
                    f"replacing {name!r} needs old=…, the model that is stored now: method "
                    f"{self.method!r} subtracts its term"
                )
            number = self.superposition.number(name)
            self._add_term(number, self._check(name, opened(name, old)), -1)
            self._set(name, new)
            return
        after = copy.deepcopy(self)
        after._solve({**self._models(), name: new}, calibration, batch_size, finetune)
        self.load_state_dict(after.state_dict())

    def _check_solvable(self, calibration: Mapping[Any, Any] | None) -> None:
        if self.method == "solve" and calibration is None:
            raise SuperposeError(
                "the weights of a solved model are found again for all of its tasks: give "
                "calibration=…, inputs of each task, as when it was packed"
            )

    def _models(self) -> dict[Any, Source]:
        """The stored models, each read out when it is wanted."""
        return {name: functools.partial(unpack, self, name) for name in self.tasks}

    def _solve(
        self,
        models: Mapping[Any, Source],
        calibration: Mapping[Any, Any] | None,
        batch_size: int,
        finetune: int,
        input_shape: tuple[int, ...] | None = None,
        track: Callable[[Any, str], Any] = lambda steps, _: steps,
    ) -> None:
        sources = Sources(models)
        for name in models:
            self._set_private(name, sources.open(name))
        given = calibration
        if given is None:
            given = _noise(sources, self.superposition.seed, input_shape)
        _check_calibration(self.tasks, given)
        solve(self, sources, given, batch_size, lambda ws: track(ws, "solve"))
        if finetune:
            seed = self.superposition.seed
            with evaluating(self):  # rows of different tasks must not meet in a batch's statistics
                distil(
                    self, sources, given, finetune, batch_size, seed, lambda s: track(s, "finetune")
                )

    def _check(self, name: Name, net: nn.Module) -> nn.Module:
        """The model, if it fits beside those that are stored."""
        own = unsuperpose(self).state_dict()
        state = checked(name, net, {key: shape_of(t) for key, t in own.items()})
        for key in self.summary().shared:
            if key in own and not torch.equal(state[key], own[key]):
                raise SuperposeError(
                    f"model {name!r}: {key} is shared by all stored models and differs in this "
                    "one: pack them from the start, together"
                )
        return net

    def _set(self, name: Name, net: nn.Module) -> None:
        """Store a model whose task is there already."""
        self._add_term(self.superposition.number(name), net, +1)
        self._set_private(name, net)

    def _add_term(self, number: int, net: nn.Module, sign: int) -> None:
        """Add (or subtract) W C⁻¹ of one model for every layer: equation 1."""
        for layer in layers(self):
            for tensor in layer.contexts:
                own = net.get_parameter(joined(layer.path, tensor)).detach().double()
                if tensor in layer.bases:
                    own = own - layer.bases[tensor].detach().double()
                context = layer.grouped(tensor, layer.contexts[tensor].derive(number))
                term = layer.from_matrix(context.unbind_weight(layer.to_matrix(own)))
                target = getattr(layer.slot(number), tensor)
                with torch.no_grad():
                    target.copy_(target.double() + sign * term)

    def _set_private(self, name: Name, net: nn.Module) -> None:
        number = self.superposition.number(name)
        state = net.state_dict()
        for layer in layers(self):
            for tensor, part in layer.private.items():
                if not tensor.endswith(CONTEXT):
                    part.of(number).detach().copy_(state[joined(layer.path, tensor)])


def pack(
    models: Mapping[Any, Source],
    family: str | Family = "binary",
    *,
    method: str = "solve",
    calibration: Mapping[Any, Any] | None = None,
    base: nn.Module | None = None,
    random_pairing: bool = False,
    seed: int = 0,
    private_layers: Iterable[str] = (),
    skip: Iterable[str] = (),
    conv: str = "kernel",
    batch_dim: int | None = None,
    batch_size: int = 256,
    finetune: int = 0,
    input_shape: tuple[int, ...] | None = None,
    progress: bool = False,
) -> Packed:
    """Store models of one architecture in one set of weights.

    `models` is a mapping from names to modules, or to functions that return one, which are called
    when it is needed: then no two models are in memory at a time. Methods:

    - "solve" (default): in closed form, layer by layer, the weights whose read-outs do best on
      `calibration`, unlabelled inputs of each task: a tensor of rows, several tensors, a mapping
      of them, or a function that returns one of these. `finetune` adds so many steps of
      distillation on the same inputs. With a `base`, it is differences from it that are stored.
    - "sum": W = Σₖ Wₖ C(k)⁻¹, the paper's equation 1, for study.
    - "delta": one base for all, and the sum of the models' differences from it; without a `base`
      it is the models' mean. With `random_pairing` layers of one shape change places before they
      are summed, in an order drawn for each task, so that unrelated differences are added up.

    Biases and norms are private to each task; what all models have in common is kept once;
    embeddings and tables of positions that differ become private. The result is a superposed
    model: it runs with a task, or one per row, saves, and counts its cost.

    >>> nets = {name: nn.Linear(32, 4) for name in ("a", "b")}
    >>> inputs = {name: torch.randn(64, 4) @ torch.randn(4, 32) for name in nets}
    >>> packed = pack(nets, calibration=inputs)
    >>> x = inputs["b"]
    >>> bool((packed(x, task="b") - nets["b"](x)).abs().max() < 1e-3)
    True
    """
    if method not in METHODS:
        raise SuperposeError(f"method={method!r}: use one of {', '.join(METHODS)}")
    if random_pairing and method != "delta":
        raise SuperposeError(f"random_pairing is for method 'delta', and this one is {method!r}")
    chosen = contexts.family(family)
    if chosen.complex_valued:
        raise SuperposeError(
            f"the family {family!r} makes networks complex-valued, so models could not come out as "
            "they went in: use 'phase', which is complex superposition for a real network"
        )
    if isinstance(chosen, Drawn) and chosen.learnable:
        raise SuperposeError(
            f"the weights of packed models are computed for contexts that stay as they are: leave "
            f"learnable out of {family!r}"
        )
    if finetune < 0:
        raise SuperposeError(f"finetune={finetune}: it is a number of steps")
    if method != "solve" and finetune:
        raise SuperposeError(f"finetune={finetune} is for method 'solve', not {method!r}")
    sources = Sources(models)
    check_names(list(sources.models))
    if calibration is not None:
        _check_calibration(sources.models, calibration)
    if method == "delta" and base is None:
        base = _mean(sources)
    private, shared = _sorted(sources)
    private_layers = several("private_layers", private_layers)
    conversion = Conversion(
        "per-task",
        (*private_layers, *(name for name in private if not inside(name, private_layers))),
        (*several("skip", skip), *shared),
        conv,
        batch_dim,
        base is not None,
        random_pairing,
    )
    names: dict[Name, int] = {name: number for number, name in enumerate(sources.models)}
    packed = build(sources.open(next(iter(names))), chosen, names, seed, conversion, Packed)
    packed.method = method
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
    track = _bar if progress else (lambda steps, _: steps)
    if method == "solve":
        packed._solve(models, calibration, batch_size, finetune, input_shape, track)
    else:
        for name in track(list(names), method):
            packed._set(name, sources.open(name))
    return packed


def unpack(packed: Superposed, name: Name) -> nn.Module:
    """One model as the plain module: its weights are W C(k), its private parameters its own."""
    return unsuperpose(packed, name)


def _bar(steps: Any, label: str) -> Any:
    from rich.progress import track

    return track(steps, label, transient=True)


def _check_calibration(names: Iterable[Any], calibration: Mapping[Any, Any]) -> None:
    missing = [name for name in names if name not in calibration]
    if missing:
        raise SuperposeError(
            f"there are no calibration inputs for {missing[0]!r}: every task needs its own"
        )


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


def _mean(sources: Sources) -> nn.Module:
    """The model of the mean weights."""
    total: dict[str, Tensor] = {}
    for name in sources.models:
        for key, tensor in sources.open(name).state_dict().items():
            total[key] = total.get(key, 0.0) + tensor.double()
    mean = copy.deepcopy(sources.open(next(iter(sources.models))))
    mean.load_state_dict({key: value / len(sources.models) for key, value in total.items()})
    return mean


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


def _sorted(sources: Sources) -> tuple[list[str], list[str]]:
    """Layers and tensors that have to be private, and layers that are the same in all models."""
    net = sources.open(next(iter(sources.models)))
    with warnings.catch_warnings(action="ignore"):  # what it leaves shared may yet be private
        probe = build(net, contexts.family("identity"), {0: 0}, 0, Conversion(), Superposed)
    placed = {layer.path for layer in layers(probe)}
    tables = {name for name, m in net.named_modules() if isinstance(m, nn.Embedding)}
    owner = {key: key.rpartition(".")[0] for key in sources.shapes}
    differing = {owner[key] for key in sources.differing}
    looked_up = {m.weight.data_ptr() for m in net.modules() if isinstance(m, nn.Embedding)}
    tied = {owner[key] for key, t in net.state_dict().items() if t.data_ptr() in looked_up}
    private = sorted(differing & tied)
    for key in probe.summary().shared:
        if key not in sources.differing or owner[key] in tables:
            continue
        module = net.get_submodule(owner[key])
        if key.rpartition(".")[2] not in kept(module):
            raise SuperposeError(
                f"{key} differs between the models, and {type(module).__name__} can be neither "
                "superposed nor private: keep it the same in all models"
            )
        private.append(key)
    same = sorted({name for name in owner.values() if name in placed} - differing)
    if len(sources.models) == 1 or not differing & placed - set(private):
        return private, []  # one model, or equal ones: there is nothing to tell apart
    apart = [n for n in same if not inside(n, differing)]
    return private, [n for n in apart if not any(inside(other, [n]) for other in differing)]


def _noise(
    sources: Sources, seed: int, input_shape: tuple[int, ...] | None
) -> dict[Any, Callable[[], Tensor]]:
    """Gaussian inputs, where there are no real ones."""
    warnings.warn(
        "packing without calibration inputs: the models are fitted on Gaussian noise, which is "
        "worse than on a few thousand unlabelled inputs of each task",
        stacklevel=4,
    )
    shape = input_shape or _input_shape(sources.open(next(iter(sources.models))))

    def draw(number: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed + number)
        return torch.randn(NOISE_ROWS, *shape, generator=generator, device=generator.device)

    return {n: functools.partial(draw, number) for number, n in enumerate(sources.models)}


def _input_shape(net: nn.Module) -> tuple[int, ...]:
    """What the first layer takes, if it is a linear one."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            return (module.in_features,)
        if next(module.parameters(recurse=False), None) is not None:
            break
    raise SuperposeError(
        f"{type(net).__name__} does not tell the shape of its inputs: give calibration inputs, or, "
        "to pack with noise, input_shape=(channels, height, width)"
    )
