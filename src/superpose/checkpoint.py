"""Superposed models as files: one safetensors file, what it means as JSON in its header."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import torch
from torch import Tensor, nn

from superpose import contexts
from superpose.errors import SuperposeError
from superpose.model import Superposed, build, check_network, layers, private_state
from superpose.nn.additions import drawn_numbers
from superpose.nn.convert import Conversion
from superpose.nn.custom import DeclaredLayer
from superpose.nn.flat import RECOGNITION, Part, is_sharded
from superpose.nn.names import joined
from superpose.nn.patterns import FamilyByLayer
from superpose.nn.private import STATE, is_private
from superpose.nn.quantised import full, is_quantised
from superpose.nn.registry import input_dims, told
from superpose.packing import Packed
from superpose.packing.methods import stored
from superpose.precision import SCALE, reduced, restored
from superpose.tensor_file import FORMAT, HEADER, checksum, read, write

SCALES_OF_ROWS = 3  # the format of files whose scales, if any, are those of rows
OTHER_SCALES = 4  # of files with other scales
FEATURES_OF_BASE = 5  # of files with statistics of a base, or of classes
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
    groups = private_state(model).groups
    learned = {name: tasks for name, group in groups.items() if (tasks := group.learned())}
    tables = {
        f"{STATE}.{name}": torch.stack([groups[name].of(task).detach() for task in tasks])
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
        counts = [f"{STATE}.{name}" for name, group in groups.items() if group.kind == RECOGNITION]
        whole = [name for name in tables if dtype == torch.int8 or name in counts]
        own = {name: tensors.pop(name) for name in whole}
        tensors = reduced(tensors, dtype, _input_dims(model)) | own
    pairs = [name for name, tensor in tensors.items() if tensor.dtype == torch.complex128]
    tensors |= {name: torch.view_as_real(tensors[name]) for name in pairs}
    superposition = model.superposition
    header = {
        "format": _format(model, tensors),
        "family": _described(superposition.family),
        "seed": superposition.seed,
        "tasks": list(superposition.names.items()),
        "spent": superposition.spent,
        "private": {  # what the rows and columns of each table are; other tasks have the start
            name: {"tasks": tasks, "tensors": [[p.path, p.numel] for p in groups[name].parts]}
            for name, tasks in learned.items()
        },
        "method": model.method if isinstance(model, Packed) else None,
        "conversion": superposition.conversion.described(),
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
    method: str | None = header.get("method")
    for form in header.get("forms", []):
        _check_form(path, net, form)
    model = build(
        net,
        _family(header["family"]),
        dict(header["tasks"]),
        header["seed"],
        Conversion(**header["conversion"]),
        Packed if method else Superposed,
        start=False,
    )
    if "forms" in header:
        _check_no_other_forms(path, model, header["forms"])
    model.superposition.spent = header.get("spent", 0)
    if isinstance(model, Packed) and method:
        model.packing_method = stored(method)
    for name in header.get("pairs", []):  # copied: a file's bytes may lie where pairs must not
        tensors[name] = torch.view_as_complex(tensors[name].clone())
    if header.get("reduced") is not None:
        here = {name: tensor.dtype for name, tensor in _shared_state(model).items()}
        here |= {name: getattr(torch, kind) for name, kind in header["reduced"].items()}
        tensors = restored(tensors, here)
    tensors |= {name: tensors[original] for name, original in header["same_as"].items()}
    if header.get("base"):
        tensors |= _base_of(path, model, header["base"])
    if header["format"] == 1:
        _check_fit(path, _shared_state(model) | _wanted_by_format_1(model), tensors)
        own = _own_of_format_1(model, tensors)
    else:
        own = _own(header, tensors)
        parts = {part.path: part for part in private_state(model).parts}
        if header.get("reduced") is not None:
            own = {
                name: (tasks, columns.to(parts[name].template()) if name in parts else columns)
                for name, (tasks, columns) in own.items()
            }
        kept = {f"{STATE}.{name}": columns[0] for name, (_, columns) in own.items()}
        known = {f"{STATE}.{n}": p.template().reshape(-1) for n, p in parts.items() if n in own}
        _check_fit(path, _shared_state(model) | known, tensors | kept)
    _restore(model, tensors, own)
    if context_digest(model) != header["contexts"]:
        raise SuperposeError(
            f"{path}: the contexts derived here differ from those it was saved with, so its models "
            "cannot be read; were layers of the network renamed, are modules of its own not "
            "declared with sp.nn.register, or is this another superpose?"
        )
    return model


def context_digest(model: Superposed) -> str:
    """A digest of what the contexts of the first task do in each layer, and of its pairing."""
    digest = hashlib.sha256()
    first = min(model.superposition.names.values())
    for layer in layers(model):
        if layer.pairing is not None:
            digest.update(layer.slot(first).path.encode() + b"\0")
        for bound in layer.contexts.values():
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
    for layer in layers(model):
        if isinstance(layer, DeclaredLayer) and layer.contexts:
            form = {"class": layer.plain_class.__name__, "input_dims": layer.input_dims}
            found.setdefault(json.dumps(form), {**form, "layers": []})["layers"].append(layer.path)
    return list(found.values())


def _check_form(path: str | os.PathLike[str], net: nn.Module, form: dict[str, Any]) -> None:
    """That what was declared when a file was saved is declared here, too."""
    kind, saved = form["class"], form["input_dims"]
    modules = dict(net.named_modules(remove_duplicate=False))
    for layer in form["layers"]:
        here = input_dims(layer, modules[layer]) if layer in modules else saved
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
        part.path: part.template()
        for part in private_state(model).parts
        if part.path in state and is_quantised(state[part.path])
    }
    return {name: tensor for name, tensor in (state | starts).items() if not is_private(name)}


def _input_dims(model: Superposed) -> dict[str, tuple[int, ...]]:
    """Of the weights, and their bases: the dimensions that belong to one output."""
    return {
        joined(layer.path, stored): layer.dims_of_inputs(name)
        for layer in layers(model)
        for name in layer.contexts
        for stored in (name, f"bases.{name}")
    }


def _format(model: Superposed, tensors: dict[str, Tensor]) -> int:
    """The lowest format that can say what is in the file."""
    conversion = model.superposition.conversion
    if conversion.centre_before_norms:
        return FORMAT
    if conversion.recognise is not None and conversion.recognise.only_told:
        return FEATURES_OF_BASE
    others = any(name.endswith(SCALE) and scale.ndim > 1 for name, scale in tensors.items())
    return OTHER_SCALES if others else SCALES_OF_ROWS


def _base_names(model: Superposed) -> list[str]:
    """What all tasks start from: all that they share but the changes.

    The private tensors that a task of a packed model would start from are those of a model.
    """
    if not model.superposition.conversion.base:
        raise SuperposeError(
            "base=False: the model has no base that could be left out; superpose(…, base=True), or "
            "pack(…, method='delta')"
        )
    bases = {
        joined(layer.path, f"bases.{name}"): base
        for layer in layers(model)
        for name, base in layer.bases.items()
    }
    names = list(bases)
    rounded = next((name for name, base in bases.items() if is_quantised(base)), None)
    if rounded is not None:
        raise SuperposeError(
            f"base=False: {rounded} is quantised, so it is not the network that others have: save "
            "the model before it is quantised, or with its base"
        )
    if isinstance(model, Packed):
        return names
    changes = {joined(layer.path, name) for layer in layers(model) for name in layer.contexts}
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


def _wanted_by_format_1(model: Superposed) -> dict[str, Tensor]:
    """Format 1 kept a tensor for each private one of each task."""
    parts, tasks = private_state(model).parts, model.superposition.names.values()
    return {_name_of_format_1(part, task): part.template() for part in parts for task in tasks}


def _own_of_format_1(model: Superposed, tensors: dict[str, Tensor]) -> dict[str, Own]:
    """Take them out of a file's; of a learned context it kept the numbers, not their change."""
    tasks = list(model.superposition.names.values())
    own: dict[str, Own] = {}
    for part in private_state(model).parts:
        rows = []
        for task in tasks:
            kept = tensors.pop(_name_of_format_1(part, task))
            drawn = drawn_numbers(part.layer, part.name, task)
            rows.append((kept if drawn is None else kept - drawn).reshape(-1))
        own[part.path] = tasks, torch.stack(rows)
    return own


def _name_of_format_1(part: Part, task: int) -> str:
    return joined(part.layer.path, f"private.{part.name}.{task}")


@torch.no_grad()
def _restore(model: Superposed, shared: dict[str, Tensor], own: dict[str, Own]) -> None:
    model.load_state_dict(shared)
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
    private_state(model).add(model.superposition.names.values())
    for group in private_state(model).groups.values():
        learned = [own.get(part.path, ([], None))[0] for part in group.parts]
        if learned[0] and all(tasks == learned[0] for tasks in learned):
            table = torch.cat([own[part.path][1] for part in group.parts], 1)
            for task, row in zip(learned[0], table, strict=True):
                group.of(task).copy_(row)
            continue
        for part, tasks in zip(group.parts, learned, strict=True):  # tables of other types then
            for place, task in enumerate(tasks):
                part.of(task).copy_(own[part.path][1][place].view(part.shape))


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
