"""Superposed models as files: one safetensors file, with what it means as JSON in its header."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import torch
from torch import Tensor, nn

from superpose import contexts
from superpose.errors import SuperposeError
from superpose.model import Superposed, build, check_network
from superpose.nn.flats import RECOGNITION, Slot, is_sharded
from superpose.nn.names import joined
from superpose.nn.options import Options
from superpose.nn.patterns import FamilyByLayer
from superpose.nn.private import STATE, is_private
from superpose.nn.quantised import full, is_quantised
from superpose.nn.registry import Declared, input_dims, told
from superpose.precision import reduced, restored
from superpose.tensor_file import FORMAT, HEADER, checksum, read, write

PROBE = 256  # how many coordinates of a context go into the digest
Own = tuple[list[int], Tensor]  # of a private tensor: tasks that learned, and theirs, a row each
QUANTUM = 2.0**-20  # contexts agree if they agree to this; rotations differ by rounding elsewhere


def save(
    model: Superposed,
    path: str | os.PathLike[str],
    *,
    base: bool = True,
    dtype: torch.dtype | None = None,
) -> None:
    """Write the model to one file; a file that is there stays whole until the new one is.

    Fixed contexts are not in it: they are derived again from the seed, the names of the layers and
    the tasks. A digest of them tells on loading that they came out the same.

    `base=False` leaves out the base of a model that has one, for people who have it already: the
    file is loaded into that network, and a digest tells that it is the same one. `dtype` stores the
    numbers in fewer bits, `torch.bfloat16` or `torch.int8` (which has a scale for each output of a
    weight, and leaves vectors as they are); loaded, they have the types of the network again. Of
    weights that torchao has quantised, a file has the numbers that they stand for: quantise the
    model again when it is loaded.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile made of it
    if not isinstance(model, Superposed):
        raise SuperposeError(f"{type(model).__name__} is not superposed: superpose() it first")
    model.check_layers()
    every = model.private_state.flats
    learned = {name: tasks for name, flats in every.items() if (tasks := flats.learned())}
    tables = {
        f"{STATE}.{name}": torch.stack([every[name].own[task].detach() for task in tasks])
        for name, tasks in learned.items()
    }
    shared = _shared_state(model)
    left_out = [] if base else _base_names(model)
    digest = _digest({name: shared.pop(name) for name in left_out}) if left_out else None
    shared = {name: full(tensor) for name, tensor in shared.items()}
    wanted = {name: str(t.dtype).removeprefix("torch.") for name, t in tables.items()}
    tensors, same_as = _distinct(shared | tables)
    if any(map(is_sharded, tensors.values())):
        raise SuperposeError(
            "the model is sharded over processes: load get_model_state_dict(model, options="
            "StateDictOptions(full_state_dict=True)) into a model that is not, and save that"
        )
    if dtype is not None:  # of int8, a row of a table is many vectors, and not one output
        counts = [f"{STATE}.{name}" for name, one in every.items() if one.kind == RECOGNITION]
        whole = [name for name in tables if dtype == torch.int8 or name in counts]
        own = {name: tensors.pop(name) for name in whole}
        tensors = reduced(tensors, dtype, _input_dims(model)) | own
    pairs = [name for name, tensor in tensors.items() if tensor.dtype == torch.complex128]
    tensors |= {name: torch.view_as_real(tensors[name]) for name in pairs}
    superposition = model.superposition
    header = {
        "format": FORMAT,
        "family": _described(superposition.family),
        "seed": superposition.seed,
        "tasks": list(superposition.names.items()),
        "spent": superposition.spent,
        "by_number": superposition.by_number,
        "begun": sorted(model.private_state.begun),
        "private": {  # what the rows and columns of each table are; other tasks have the start
            name: {"tasks": list(map(int, tasks)), "tensors": every[name].columns()}
            for name, tasks in learned.items()
        },
        "method": getattr(model, "method", None) if model._kind is not Superposed else None,
        "options": superposition.options.described(),
        "forms": _forms(model),
        "same_as": same_as,
        "pairs": pairs,  # complex numbers in double precision, which the format does not know
        "contexts": context_digest(model),
        "base": digest,  # of the tensors that are not in the file
        "reduced": wanted if dtype is not None else None,  # the types that private tables had
    }
    header["checksum"] = checksum(header, tensors)
    write(path, tensors, {HEADER: json.dumps(header)})


def load(path: str | os.PathLike[str], net: nn.Module) -> Superposed:
    """The superposed model of a file; `net` is the plain architecture, whatever its weights.

    If the file was saved without its base, `net` is the pretrained network itself.
    """
    check_network(net)
    if any(map(is_quantised, net.parameters())):
        raise SuperposeError(
            f"{path} has plain numbers, and {type(net).__name__} is quantised: load it into the "
            "network before it is quantised, and quantise the model"
        )
    header, tensors = read(path)
    for form in header["forms"]:
        _check_form(path, net, form)
    model = build(
        net,
        _family(header["family"]),
        dict(header["tasks"]),
        header["seed"],
        Options(**header["options"]),
        _class_of(header["method"]),
        start=False,
    )
    _check_no_other_forms(path, model, header["forms"])
    model.superposition.spent = header["spent"]
    model.superposition.by_number = header["by_number"]
    if header["method"]:
        model.method = header["method"]
    for name in header["pairs"]:  # copied: a file's bytes may lie where pairs must not
        tensors[name] = torch.view_as_complex(tensors[name].clone())
    if header["reduced"] is not None:
        here = {name: tensor.dtype for name, tensor in _shared_state(model).items()}
        here |= {name: getattr(torch, kind) for name, kind in header["reduced"].items()}
        tensors = restored(tensors, here)
    tensors |= {name: tensors[original] for name, original in header["same_as"].items()}
    if header["base"]:
        tensors |= _base_of(path, model, header["base"])
    own = _own(header, tensors)
    slots = {slot.full_name: shape for slot, shape in _slots(model)}
    if header["reduced"] is not None:
        own = {
            name: (tasks, columns.to(slots[name]) if name in slots else columns)
            for name, (tasks, columns) in own.items()
        }
    kept = {f"{STATE}.{name}": columns[0] for name, (_, columns) in own.items()}
    known = {f"{STATE}.{n}": start.reshape(-1) for n, start in slots.items() if n in own}
    _check_fit(path, _shared_state(model) | known, tensors | kept)
    _restore(model, tensors, own, header["begun"])
    if context_digest(model) != header["contexts"]:
        raise SuperposeError(
            f"{path}: the contexts derived here differ from those it was saved with, so its models "
            "cannot be read; were layers of the network renamed, are modules of its own not "
            "declared with sp.nn.register, or is this another superpose?"
        )
    return model


def _class_of(method: str | None) -> type[Superposed]:
    """A packed model, if the file names a method of packing."""
    if method is None:
        return Superposed
    from superpose.packing import Packed  # which stands on files

    return Packed


def context_digest(model: Superposed) -> str:
    """A digest of what the contexts of the first task do in each layer."""
    digest = hashlib.sha256()
    first = min(model.superposition.names.values())
    for layer in model.superposed_layers:
        for bound in (one.context for one in layer.bound.values()):
            probe = torch.linspace(1, 2, bound.dim, dtype=torch.float64, device="cpu")
            context = bound.family.context(bound.keys(first)[0], bound.dim)
            probed = context.bind(probe)[:PROBE]
            real = torch.view_as_real(probed) if probed.is_complex() else probed
            steps = (real / QUANTUM).round().to(torch.int64)
            digest.update(bound.layer.encode() + b"\0" + steps.numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def _described(family: FamilyByLayer) -> dict[str, Any]:
    if not isinstance(family, dict):
        return contexts.describe(family)
    return {"patterns": [[pattern, contexts.describe(one)] for pattern, one in family.items()]}


def _family(described: dict[str, Any]) -> FamilyByLayer:
    if "patterns" not in described:
        return contexts.from_description(described)
    return {pattern: contexts.from_description(one) for pattern, one in described["patterns"]}


def _forms(model: Superposed) -> list[dict[str, Any]]:
    """Which dimensions were declared for which classes, and the layers that were bound by them."""
    found: dict[str, dict[str, Any]] = {}
    for layer in model.superposed_layers:
        if isinstance(layer, Declared) and layer.bound:
            dims = {n: bound.layout.dim for n, bound in layer.bound.items()}  # type: ignore[attr-defined]
            form = {"class": layer.plain_class.__name__, "input_dims": dims}
            found.setdefault(json.dumps(form), {**form, "layers": []})["layers"].append(layer.path)
    return list(found.values())


def _check_form(path: str | os.PathLike[str], net: nn.Module, form: dict[str, Any]) -> None:
    """That what was declared when a file was saved is declared here, too."""
    kind, saved = form["class"], form["input_dims"]
    modules = dict(net.named_modules(remove_duplicate=False))
    for layer in form["layers"]:
        here = input_dims(modules[layer], layer) if layer in modules else saved
        if here != saved:
            known = (
                "is not declared here" if here is None else f"is declared with {told(here)} here"
            )
            raise SuperposeError(
                f"{path}: {kind} {layer!r} was bound by {told(saved)}, and its class {known}: call "
                f"sp.nn.register({kind}, {told(saved)}) before it is loaded"
            )


def _check_no_other_forms(
    path: str | os.PathLike[str], model: Superposed, forms: list[dict[str, Any]]
) -> None:
    """That nothing was declared since: what was shared by all tasks would be bound."""
    saved = {layer for form in forms for layer in form["layers"]}
    for form in _forms(model):
        for layer in set(form["layers"]) - saved:
            raise SuperposeError(
                f"{path}: {form['class']} {layer!r} is declared with {told(form['input_dims'])} "
                "here, and was shared by all tasks when it was saved: load it where the class is "
                "not declared"
            )


def _shared_state(model: Superposed) -> dict[str, Tensor]:
    """The model's state but for its private tensors; what tasks start from is never quantised."""
    state: dict[str, Tensor] = model.state_dict()
    starts = {
        slot.full_name: start
        for slot, start in _slots(model)
        if slot.full_name in state and is_quantised(state[slot.full_name])
    }
    return {name: tensor for name, tensor in (state | starts).items() if not is_private(name)}


def _slots(model: Superposed) -> list[tuple[Slot, Tensor]]:
    """All private tensors, each with what tasks start from."""
    return [
        (slot, start.view(shape))
        for flats in model.private_state.flats.values()
        for slot, start, (_, _, shape) in zip(
            flats.slots, flats.start.split(flats.sizes), flats.places, strict=True
        )
    ]


def _input_dims(model: Superposed) -> dict[str, tuple[int, ...]]:
    """Of the weights, and their bases: the dimensions that belong to one output."""
    return {
        joined(layer.path, stored): bound.layout.input_dims(layer.stored(name))
        for layer in model.superposed_layers
        for name, bound in layer.bound.items()
        for stored in (name, f"bases.{name}")
    }


def _base_names(model: Superposed) -> list[str]:
    """What all tasks start from: all that they share but the changes.

    The private tensors that a task of a packed model would start from are those of a model.
    """
    if not model.superposition.options.base:
        raise SuperposeError(
            "base=False: the model has no base that could be left out; superpose(…, base=True), or "
            "pack(…, method='delta')"
        )
    bases: dict[str, Any] = {
        joined(layer.path, f"bases.{name}"): layer.base(name)
        for layer in model.superposed_layers
        for name in layer.bound
    }
    names = list(bases)
    rounded = next((name for name, base in bases.items() if is_quantised(base)), None)
    if rounded is not None:
        raise SuperposeError(
            f"base=False: {rounded} is quantised, so it is not the network that others have: save "
            "the model before it is quantised, or with its base"
        )
    if model._kind is not Superposed:
        return names
    changes = {joined(la.path, name) for la in model.superposed_layers for name in la.bound}
    return [name for name in _shared_state(model) if name not in changes]


def _base_of(path: str | os.PathLike[str], model: Superposed, digest: str) -> dict[str, Tensor]:
    """The base, from the network that a file is loaded into."""
    shared = _shared_state(model)
    own = {name: shared[name] for name in _base_names(model)}
    if _digest(own) != digest:
        raise SuperposeError(
            f"{path} was saved without its base, and this network is another one (its digest is "
            f"{_digest(own)[:12]}, that of the base {digest[:12]}): load it into the pretrained "
            "network whose weights were the base, in the same dtype"
        )
    return own


def _digest(tensors: dict[str, Tensor]) -> str:
    return checksum({}, {name: t.detach().cpu().contiguous() for name, t in tensors.items()})


def _own(header: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Own]:
    """Take the private tensors out of a file's."""
    own: dict[str, Own] = {}
    for name, table in header["private"].items():
        names, sizes = zip(*table["tensors"], strict=True)
        columns = tensors.pop(f"{STATE}.{name}").split(sizes, 1)
        own |= {one: (table["tasks"], column) for one, column in zip(names, columns, strict=True)}
    return own


@torch.no_grad()
def _restore(
    model: Superposed, shared: dict[str, Tensor], own: dict[str, Own], begun: list[int]
) -> None:
    state = dict(model.state_dict())  # what is private comes after it
    model.load_state_dict({n: t for n, t in state.items() if is_private(n)} | shared)
    first: dict[int, str] = {}  # of the names that one tensor has in the network
    names = {n: first.setdefault(id(t), n) for n, t in model.state_dict(keep_vars=True).items()}
    lost = next(
        (n for n, t in shared.items() if names[n] != n and not torch.equal(t, shared[names[n]])),
        None,
    )
    if lost is not None:
        raise SuperposeError(
            f"{lost} is tied to another tensor in the network, and not in the file: load it into a "
            "network whose tensors are tied as they were"
        )
    private = model.private_state
    private.add(model.superposition.names.values())
    private.begun.update(begun)
    for flats in private.flats.values():
        place = 0
        for slot, size in zip(flats.slots, flats.sizes, strict=True):
            tasks, rows = own.get(slot.full_name, ([], None))
            for row, task in enumerate(tasks):
                assert rows is not None
                flats.own[str(task)].data[place : place + size].copy_(rows[row])
            place += size


def _distinct(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, those that share their memory once, and which name is the same as which."""
    seen: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    distinct, same_as = {}, {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and place in seen:
            same_as[name] = seen[place]
        else:
            seen[place] = name
            distinct[name] = tensor.detach().cpu().contiguous()
    return distinct, same_as


def _check_fit(
    path: str | os.PathLike[str], wanted: dict[str, Tensor], found: dict[str, Tensor]
) -> None:
    def told(names: set[str]) -> str:
        first = sorted(names)[:3]
        return ", ".join(first) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    problem = None
    if missing := wanted.keys() - found.keys():
        problem = f"it has no {told(missing)}"
    elif extra := found.keys() - wanted.keys():
        problem = f"the network has no {told(extra)}"
    else:
        for name, tensor in wanted.items():
            here, there = _kind(tensor), _kind(found[name])
            if here != there:
                problem = f"{name} is {there} in the file and {here} in the network"
                if tensor.shape == found[name].shape:
                    raise SuperposeError(
                        f"{path} holds another dtype: {problem}; load it into "
                        f"net.to({found[name].dtype}), and convert the model afterwards"
                    )
                break
    if problem:
        raise SuperposeError(
            f"{path} holds another architecture: {problem}; load it into a network like the one it "
            "was saved from"
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
