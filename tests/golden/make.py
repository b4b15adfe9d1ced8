"""Writes golden files: a small one of every kind, and beside it what it has to give when read.

Run by hand, once a format: `PYTHONPATH=tests python -m golden.make`. Once a format is released, its
files are never made again: a later version of the library has to read them as they are.
"""

import copy
import json
from functools import partial
from pathlib import Path

import torch
from golden.networks import digest, inputs, network, tolerance

import superpose as sp
from superpose import contexts
from superpose.packing import Packed
from superpose.tensor_file import FORMAT

EXACT = {"identity", "binary", "permutation"}  # families that turn a weight without rounding
COARSE = {"mlp, bfloat16", "mixed types"}  # networks whose tasks may come close to each other
SEED = 7


def learned(name, family="binary", tasks=3, **options):
    """A model of which every task has learned something from inputs of its own."""
    model = sp.superpose(network(name), family, tasks=tasks, seed=SEED, **options)
    model.begin(*model.tasks)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        for number, task in enumerate(model.tasks):
            optimiser.zero_grad()
            output = model(inputs(name, number + 1), task=task)
            (output - number - 1).square().mean().backward()
            optimiser.step()
    return model


def renamed():
    """A task with another name, and a number that may never be given out again."""
    model = learned("mlp", "hadamard", tasks=["a", "b", "c"])
    model.remove_task("c")
    model.rename_task("a", "alpha")
    return model


def removed():
    """Tasks whose numbers are not those of their places."""
    model = learned("mlp", tasks=["a", "b", "c", "d"])
    model.remove_task("b")
    return model


def declared(name, tasks, learning):
    """Tasks of which only some have learned something; a norm tells by its statistics, too."""
    model = learned(name, tasks=tasks)
    fresh = sp.superpose(sp.unsuperpose(model), tasks=tasks, seed=SEED)
    with torch.no_grad():
        for task in learning:
            own = fresh.private_tensors(task)
            for tensor, value in model.private_tensors(task).items():
                own[tensor].copy_(value)
    return fresh


def begun():
    """Tasks of which only some have begun to learn: the others are their base."""
    model = sp.superpose(network("mlp"), tasks=2, seed=SEED, base=True)
    model.begin(1)
    optimiser = torch.optim.SGD(model.parameters(), 0.5)
    model(inputs("mlp", 1), task=1).square().mean().backward()
    optimiser.step()
    return model


def remembered(classes):
    """Tasks that keep statistics of a deep layer's inputs in the base, which they are told."""
    kept = sp.nn.Statistics("2", rank=2, base=True, classes=classes)
    model = learned("mlp", "hadamard", base=True, recognise=kept)
    for number, task in enumerate(model.tasks):
        x = torch.cat([inputs("mlp", k) * (number + 1) / 2 for k in (1, 2)])
        told = {"classes": torch.arange(len(x)) % classes} if classes else {}
        model.remember(x, task=task, **told)
    return model


def frozen():
    """A weight that is not bound, whatever the network says that it is loaded into."""
    net = network("mlp")
    net[0].weight.requires_grad_(False)
    model = sp.superpose(net, tasks=3, seed=SEED)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for task in range(3):
        optimiser.zero_grad()
        (model(inputs("mlp", task), task=task) - task).square().mean().backward()
        optimiser.step()
    return model


def fine_tuned(name):
    """A base and models that differ from it in every tensor."""
    base = network(name).eval()
    models = {one: copy.deepcopy(base) for one in "abc"}
    for net in models.values():
        for parameter in net.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return base, models


def packed(name, family, method, with_base=False, **options):
    base, models = fine_tuned(name)
    if with_base:
        options["base"] = base
    if method == "solve":
        options["calibration"] = {one: inputs(name, number) for number, one in enumerate(models)}
    return sp.pack(models, family, method=method, seed=SEED, **options)


LEARNED = ["phase"]
KINDS = {
    **{family: ("mlp", partial(learned, "mlp", family)) for family in contexts.FAMILIES},
    **{
        f"learned-{family}": ("mlp", partial(learned, "mlp", family, learnable=True))
        for family in LEARNED
    },
    "product": ("mlp", partial(learned, "mlp", contexts.Binary() * contexts.Permutation())),
    "local-mix": (
        "mlp",
        partial(learned, "mlp", contexts.LocalMix(contexts.Phase(), 1, weights=(1, 2, 1))),
    ),
    "conv-kernel": ("conv", partial(learned, "conv", "hadamard")),
    "conv-channel": ("conv", partial(learned, "conv", conv="channel")),
    "conv-complex128": ("conv, float64", partial(learned, "conv, float64", "complex")),
    "grouped-channel": ("grouped", partial(learned, "grouped", "hadamard", conv="channel")),
    "encoder": ("encoder", partial(learned, "encoder")),
    "recurrent": ("recurrent", partial(learned, "recurrent")),
    "private-layers": ("mlp", partial(learned, "mlp", private_layers=["2"])),
    "tied": ("tied", partial(learned, "tied")),
    "tied-private": ("tied", partial(learned, "tied", private_layers=["words"])),
    "tokens": ("tokens", partial(learned, "tokens", private_layers=["positions"])),
    "renamed": ("mlp", renamed),
    "numbers": ("mlp", partial(learned, "mlp", tasks=[7, 1, "three"])),
    "bfloat16": ("mlp, bfloat16", partial(learned, "mlp, bfloat16")),
    "packed-solve": ("mlp", partial(packed, "mlp", "hadamard", "solve")),
    "packed-solve-base": ("mlp", partial(packed, "mlp", "binary", "solve", with_base=True)),
    "packed-sum": ("conv", partial(packed, "conv", "binary", "sum")),
    "packed-delta-base": ("conv", partial(packed, "conv", "hadamard", "delta", with_base=True)),
    "declared": ("mlp", partial(declared, "mlp", 5, [3])),
    "mixed-types": ("mixed types", partial(learned, "mixed types")),
    "base": ("mlp", partial(learned, "mlp", "hadamard", base=True)),
    "base-tied": ("tied", partial(learned, "tied", base=True)),
    "base-begun": ("mlp", begun),
    "rank": ("mlp", partial(learned, "mlp", "hadamard", base=True, rank=1)),
    "centred": ("mlp", partial(learned, "mlp", "hadamard", centre="task")),
    "centred-before-norm": ("conv", partial(learned, "conv", "hadamard", centre="task")),
    "centred-rows": ("mlp", partial(learned, "mlp", "hadamard", centre="rows")),
    "frozen": ("mlp", frozen),
    "eight-bits-transposed": ("grouped", partial(learned, "grouped", "hadamard")),
    "recognised": (
        "mlp",
        partial(learned, "mlp", "hadamard", base=True, recognise=sp.nn.Statistics("0", 2, 0.1)),
    ),
    "recognised-base": ("mlp", partial(remembered, 0)),
    "recognised-classes": ("mlp", partial(remembered, 2)),
}
OPTIONS = {name: {"dtype": torch.int8} for name in ("eight-bits-transposed",)}


def digests(net, rounded=()):
    """Digests of a plain network's tensors; none of those that are rounded on the way."""
    state = net.state_dict().items()
    return {name: None if name in rounded else digest(tensor) for name, tensor in state}


def expected(model, name):
    """What the file has to give: outputs as exact numbers, tensors as digests."""
    model = copy.deepcopy(model).eval()
    kind = contexts.describe(model.superposition.family)["name"]
    rounded = () if kind in EXACT else model.summary().superposed
    x = inputs(name)
    with torch.no_grad():
        outputs = {task: model(x, task=task) for task in model.tasks}
    tasks = [
        {
            "task": task,
            "output": output.double().tolist(),
            "read": digests(sp.unsuperpose(model, task), rounded),
        }
        for task, output in outputs.items()
    ]
    apart = [(a - b).abs().max() for a in outputs.values() for b in outputs.values() if a is not b]
    assert min(apart) > 100 * tolerance(name) or name in COARSE, "tasks must be told apart"
    told = {"network": name, "tasks": tasks, "stored": digests(sp.unsuperpose(model))}
    if model.superposition.options.recognise is not None:
        told["recognised"] = recognised(model, x)
    if not isinstance(model, Packed):
        told["added"] = added_task(model, x)
    return told


def recognised(model, x):
    """What tasks keep of their inputs, and how far rows are from each: it names their task."""
    kept = [
        {name: digest(t) for name, t in model.private_tensors(task).items() if "_input_" in name}
        for task in model.tasks
    ]
    return {"kept": kept, "scores": model.recognise(x).scores.double().tolist()}


def added_task(model, x):
    """The outputs of one more task, which has a number that no task had before."""
    model.add_task("one more")
    with torch.no_grad():
        return model(x, task="one more").double().tolist()


def main():
    for number, (kind, (name, make)) in enumerate(KINDS.items()):
        folder = Path(__file__).parent / f"format{FORMAT}"
        folder.mkdir(exist_ok=True)
        path = folder / f"{kind}.safetensors"
        if path.exists():
            continue
        torch.manual_seed(number)
        model = make()
        sp.save(model, path, **OPTIONS.get(kind, {}))
        if kind in OPTIONS:  # it is rounded
            model = sp.load(path, network(name))
        told = expected(model, name)
        path.with_suffix(".json").write_text(json.dumps(told, separators=(",", ":")) + "\n")
        print(path.name, path.stat().st_size, path.with_suffix(".json").stat().st_size)


if __name__ == "__main__":
    main()
