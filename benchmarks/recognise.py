"""The task found, not told: accuracy told and found, by kind of evidence, and unknown inputs.

    python benchmarks/recognise.py permuted-10 permuted-10-wide permuted-50 rotated-36
    python benchmarks/recognise.py stream-returning stream-permuted-10 stream-permuted-50
    python benchmarks/recognise.py stream-rotating-fashion permuted-250

trains each network (runs are kept in --runs, and gone on with), measures, and writes
results/recognise/NAME.json.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import superpose as sp
from superpose.lab.data import Permuting, Rotating, load
from superpose.lab.data.datasets import normalise
from superpose.lab.data.rotating import rotate
from superpose.lab.networks import MLP
from superpose.learning import Lines, method, train
from superpose.model import layers
from superpose.recognition import Inputs, Outputs, Shortlist, Statistics

RESULTS = Path(__file__).parents[1] / "results" / "recognise"
TURN = 10  # degrees


class Turning(Permuting):
    """MNIST turned by ten degrees more in each task, as in SupSup."""

    def _permuted(self, images: torch.Tensor, task: int) -> torch.Tensor:
        turned = rotate(images.view(-1, *self.dataset.shape), TURN * task)
        return normalise(turned, self.dataset.kind).flatten(1)


@dataclass(frozen=True)
class Protocol:
    """What is learned, and how many test rows of each task are recognised."""

    tasks: int
    units: int
    steps: int = 1000
    stream: type[Permuting] = Permuting
    rank: int = 0
    rows: int = 1000
    rate: dict[str, Any] = field(default_factory=lambda: {"lr": 6e-4, "schedule": "cosine"})


LARGER = {"lr": 1e-3, "schedule": "warm-cosine", "label_smoothing": 0.1}
PROTOCOLS = {
    "permuted-10": Protocol(10, 256, rows=10_000),
    "permuted-10-wide": Protocol(10, 1000, steps=2000, rows=10_000, rate=LARGER),
    "permuted-50": Protocol(50, 256),
    "permuted-250": Protocol(250, 1024, rows=200, rate=LARGER),
    "rotated-36": Protocol(36, 256, stream=Turning, rank=64),
}


@dataclass(frozen=True)
class Unbroken:
    """A stream whose tasks are told to one network and found by another."""

    make: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)
    method: str = "hadamard"


class Returning(Permuting):
    """Permutations that come back, in an order that nobody tells."""

    order = (0, 1, 2, 0, 3, 1, 4, 3, 2, 4, 0, 1)

    def __len__(self) -> int:
        return self.period * len(self.order)

    def task_at(self, step: int) -> int:
        """Look it up."""
        return self.order[step // self.period]


STREAMS = {
    "stream-returning": Unbroken(lambda: Returning(load("mnist"), tasks=5, period=150)),
    "stream-permuted-10": Unbroken(lambda: Permuting(load("mnist"), tasks=10, period=500)),
    "stream-permuted-50": Unbroken(lambda: Permuting(load("mnist"), tasks=50, period=1000)),
    "stream-rotating-fashion": Unbroken(
        lambda: Rotating(load("fashion-mnist"), steps=50_000), method="binary"
    ),
}


def learn_unbroken(name: str, runs: Path) -> dict[str, Any]:
    """Accuracy told and found at the end of a stream, and the contexts that were begun."""
    given = STREAMS[name]
    results = {}
    for tasks in ("found", "told"):
        stream = given.make()
        torch.manual_seed(0)
        net = MLP(784, 256, 10, 2, bias=False)
        results[tasks] = train(
            net,
            stream,
            method(given.method, private="none"),
            lr=1e-4,
            matrix="ends",
            evaluate_every=1000,
            out=runs / f"{name}-{tasks}",
            resume=True,
            save_every=60.0,
            display=Lines(),
            tasks=tasks,
        ).result
    found = results["found"].pop("found")
    return {
        "command": f"python benchmarks/recognise.py {name}",
        "method": given.method,
        "told": 100 * results["told"]["mean_all"],
        "found": 100 * results["found"]["mean_all"],
        "found_together": 100 * fmean(found.pop("together")),
        "found_over_time": results["found"]["first"],
        "told_over_time": results["told"]["first"],
        **found,
    }


def learn_doubt(name: str, runs: Path) -> dict[str, Any]:
    """Tasks found by outputs alone, without and with training that teaches doubt."""
    found: dict[str, Any] = {"command": f"python benchmarks/recognise.py {name}"}
    stream = Permuting(load("mnist"), tasks=8, period=400)
    for chosen in ("hadamard+projection", "hadamard+projection+doubt"):
        torch.manual_seed(0)
        out = train(
            MLP(784, 256, 10, 2, bias=False),
            stream,
            method(chosen, private="none"),
            lr=6e-4,
            matrix="ends",
            evaluate_every=400,
            out=runs / f"{name}-{chosen}",
            resume=True,
            display=Lines(),
        )
        model: Any = out.model.eval()
        found[chosen] = {"told": 100 * out.result["mean_all"]}
        for evidence in ("outputs", "entropy"):
            right = told = 0
            for task in range(stream.tasks):
                x, y = (tensor[:1000] for tensor in stream.test(task))
                with torch.no_grad():
                    names = model.recognise(x, evidence=evidence).task
                    right += int((model(x, task=names).argmax(1) == y).sum())
                told += sum(one == task for one in names)
            share = 100 / (1000 * stream.tasks)
            found[chosen][evidence] = {"accuracy": right * share, "task_right": told * share}
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """The context found at every step, coloured by the task that the stream had."""
    from matplotlib import pyplot as plt

    from superpose.lab.figures.style import save, style

    with style():
        figure, axes = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
        known: set[str] = set()
        for context, start, stop, met in found["spans"]:
            task = max(met, key=met.get)
            label = None if task in known else f"permutation {int(task) + 1}"
            known.add(task)
            axes.barh(context + 1, stop - start, left=start, color=f"C{task}", label=label)
        for begun in found["begun"]:
            axes.plot(begun["step"], begun["context"] + 1, "k|", markersize=14)
        axes.set(xlabel="step (black: a new context is begun)", ylabel="context found")
        axes.set_yticks(range(1, found["contexts"] + 1))
        axes.invert_yaxis()
        figure.legend(loc="outside right upper", frameon=False)
        save(figure, path)


def measure(name: str, runs: Path) -> dict[str, Any]:
    """Train, if that was not done, and measure."""
    given = PROTOCOLS[name]
    stream = given.stream(load("mnist"), tasks=given.tasks, period=given.steps)
    torch.manual_seed(0)
    net = MLP(784, given.units, 10, 2, bias=False)
    chosen = method("hadamard+projection", private="none", recognise=Statistics(rank=given.rank))
    out = train(
        net,
        stream,
        chosen,
        **given.rate,
        matrix="ends",
        evaluate_every=given.steps,
        out=runs / name,
        resume=True,
        save_every=60.0,
        display=Lines(),
    )
    model: Any = out.model.eval()
    return {
        "command": f"python benchmarks/recognise.py {name}",
        "tasks": given.tasks,
        "units": given.units,
        "steps": given.steps,
        "rows": given.rows,
        "told_all": 100 * out.result["mean_all"],
        **stored(model),
        **by_evidence(model, stream, given),
        **unknown(model, stream, given),
        **seconds(model, stream, given),
    }


def stored(model: Any) -> dict[str, Any]:
    """Numbers and bytes a task keeps to be recognised by, and all that is stored."""
    cost = model.cost()
    return {
        "numbers_a_task": cost.private_per_task,
        "bytes_a_task": cost.private_bytes_per_task,
        "bytes_of_all": cost.stored_bytes,
    }


def by_evidence(model: Any, stream: Permuting, given: Protocol) -> dict[str, Any]:
    """Accuracy, and the share of rows whose task is right, by kind of evidence."""
    few = Inputs() if given.tasks > 50 else None
    kinds = {"inputs": Inputs(), "shortlist": Shortlist()}
    if few is None:
        kinds |= {"log-sum-exp": Outputs(), "entropy": Outputs("entropy")}
    right = dict.fromkeys(["told", *kinds, "gradient"], 0)
    tasks = dict.fromkeys([*kinds, "gradient"], 0)
    away: list[float] = []
    total, alarms, tried = 0, 0, 0
    with torch.no_grad():
        for task in range(given.tasks):
            x, y = stream.test(task)
            x, y = x[: given.rows], y[: given.rows]
            total += len(y)
            right["told"] += int((model(x, task=task).argmax(1) == y).sum())
            for kind, evidence in kinds.items():
                some = 250  # rows at a time
                for rows, labels in zip(x.split(some), y.split(some), strict=True):
                    found = model.recognise(rows, evidence=evidence)
                    logits = model(rows, task=found.task)
                    right[kind] += int((logits.argmax(1) == labels).sum())
                    tasks[kind] += sum(one == task for one in found.task)
                    if kind == "inputs":
                        alarms += int((~found.known).sum())
                        turns = ((one - task) % given.tasks for one in found.task)
                        away += [TURN * min(t, given.tasks - t) for t in turns]
            if given.tasks <= 50:
                few_rows = x[:100]
                tried += len(few_rows)
                best = gradient(model, few_rows)
                tasks["gradient"] += int((best == task).sum())
    told = {f"{kind}": 100 * count / total for kind, count in right.items() if kind != "gradient"}
    recognised = {kind: 100 * tasks[kind] / total for kind in kinds}
    if tried:
        recognised["gradient"] = 100 * tasks["gradient"] / tried
    result: dict[str, Any] = {"accuracy": told, "task_right": recognised}
    result["false_alarms"] = 100 * alarms / total
    if given.stream is Turning:
        wrong = [one for one in away if one]
        result["degrees_off"] = sum(away) / len(away)
        result["degrees_off_if_wrong"] = sum(wrong) / max(len(wrong), 1)
    return result


def gradient(model: Any, x: torch.Tensor) -> torch.Tensor:
    """SupSup's one pass: −∂ entropy/∂α of a mixture Σ α C(k) of all contexts, for each row."""
    count = len(model.tasks)
    with torch.enable_grad():
        alpha = torch.full((len(x), count), 1 / count, requires_grad=True)
        h = x
        for place, layer in enumerate(layers(model)):
            bound = [layer.contexts["weight"].derive(k).to(h.device, h.dtype) for k in range(count)]
            mixed = sum(alpha[:, k : k + 1] * one.bind(h) for k, one in enumerate(bound))
            h = mixed @ layer.stored("weight").T
            h = h.relu() if place < 2 else h
        logs = h.log_softmax(1)
        entropy = -(logs.exp() * logs).sum()
        (moved,) = torch.autograd.grad(entropy, alpha)
    return (-moved).argmax(1)


def unknown(model: Any, stream: Permuting, given: Protocol) -> dict[str, Any]:
    """The area under the ROC curve of known rows against those of other data and other tasks."""
    known = [
        stream.test(task)[0][-200:] for task in range(0, given.tasks, max(given.tasks // 10, 1))
    ]
    usual = model.recognise(torch.cat(known), evidence="inputs").surprise
    other = given.stream(load("fashion-mnist"), tasks=given.tasks, period=1)
    fashion = torch.cat([other.test(task)[0][:200] for task in range(0, given.tasks, 5)])
    found = {"auroc_fashion": auroc(usual, model.recognise(fashion, evidence="inputs").surprise)}
    if given.stream is Permuting:
        more = Permuting(load("mnist"), tasks=given.tasks + 10, period=1)
        new = torch.cat([more.test(given.tasks + task)[0][:200] for task in range(10)])
        surprise = model.recognise(new, evidence="inputs").surprise
        found["auroc_unlearned"] = auroc(usual, surprise)
        found["unlearned_noticed"] = 100 * float((surprise > 3).double().mean())
    return found


def auroc(usual: torch.Tensor, strange: torch.Tensor) -> float:
    """How often a strange row is more surprising than a usual one."""
    both = torch.cat([usual, strange])
    rank = both.argsort().argsort().double()[len(usual) :]
    low = len(strange) * (len(strange) - 1) / 2
    return float((rank.sum() - low) / (len(usual) * len(strange)))


def seconds(model: Any, stream: Permuting, given: Protocol) -> dict[str, Any]:
    """How many plain passes of the same 128 rows recognition takes: the least of several times."""
    x = stream.test(1)[0][:128]
    plain = sp.unsuperpose(model, 1).eval()

    def least(call: Any, times: int = 15) -> float:
        taken = []
        for _ in range(times):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
        return min(taken)

    with torch.no_grad():
        one = least(lambda: plain(x))
        inputs = least(lambda: model.recognise(x, evidence="inputs"))
        short = least(lambda: model.recognise(x, evidence="shortlist"), 5)
    return {"passes": {"inputs": inputs / one, "shortlist": short / one}}


def main() -> None:
    """Measure what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*PROTOCOLS, *STREAMS, "doubt"])
    parser.add_argument("--runs", type=Path, default=Path("runs/recognise"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in given.names:
        made = {"doubt": learn_doubt, **dict.fromkeys(STREAMS, learn_unbroken)}.get(name, measure)
        found = made(name, given.runs)
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
        if name == "stream-returning":
            draw(found, RESULTS / name)
        print(json.dumps(found, indent=2), flush=True)


if __name__ == "__main__":
    main()
