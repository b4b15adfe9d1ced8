"""The task found on natural images: CIFAR-100 in ten tasks of ten classes.

    python benchmarks/recognise_images.py pretrained    # EfficientNet-lite0, ImageNet weights, base
    python benchmarks/recognise_images.py scratch       # ResNet-18 of width 16

trains the network task after task (runs are kept in --runs, and gone on with), measures accuracy
with the task told and found by each kind of evidence, and writes
results/recognise/cifar100-NAME.json.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import superpose as sp
from superpose.lab.data.drawn import DrawnTasks
from superpose.lab.experiments.pretrained import LITE0_CLASSES, cifar100, enlarged
from superpose.lab.networks import ResNet18
from superpose.learning import Lines, method, train

RESULTS = Path(__file__).parents[1] / "results" / "recognise"
REMEMBERED, TESTED = 1000, 300  # rows of each task
RANK = 16  # of the statistics of deep features


@dataclass(frozen=True)
class Protocol:
    """A network, how it is superposed, and how long it learns each task."""

    network: Callable[[], nn.Module]
    prepare: Callable[[Tensor], Tensor]
    method: str
    options: dict[str, Any]
    steps: int
    batch_size: int
    features: str  # the layer whose inputs they are


def small(images: Tensor) -> Tensor:
    """CIFAR images (B, 3, 32, 32) between −1 and 1."""
    return images.float() / 127.5 - 1


PROTOCOLS = {
    "pretrained": Protocol(
        LITE0_CLASSES.network,
        enlarged,
        "hadamard",
        {"base": True, "min_inputs": 33},
        steps=80,
        batch_size=24,
        features="head",
    ),
    "scratch": Protocol(
        lambda: ResNet18(width=16),
        small,
        "hadamard+projection",
        {"min_inputs": 145},
        steps=600,
        batch_size=64,
        features="blocks.7.conv2",
    ),
}


def measure(name: str, runs: Path) -> dict[str, Any]:
    """Train, if that was not done, and find the tasks of test rows."""
    given = PROTOCOLS[name]
    stream = DrawnTasks(
        "CIFAR-100", cifar100(), 10, 10,
        period=given.steps, batch_size=given.batch_size, seed=0, prepare=given.prepare,
    )  # fmt: skip
    torch.manual_seed(0)
    outcome = train(
        given.network(),
        stream,
        method(given.method, **given.options),
        optimiser="adam",
        lr=1e-3,
        schedule="cosine",
        reset=True,
        matrix="ends",
        evaluate_every=len(stream),
        out=runs / f"cifar100-{name}",
        resume=True,
        save_every=60.0,
        display=Lines(),
    )
    model: Any = outcome.model.eval()
    found = {
        "command": f"python benchmarks/recognise_images.py {name}",
        "told_all": 100 * outcome.result["mean_all"],
        "rows": TESTED,
        **by_evidence(model, stream),
    }
    sp.recognition.keep(model, sp.nn.Statistics(given.features, rank=RANK))
    for task in range(stream.tasks):
        rows = torch.cat([stream.batch(step).x for step in of_task(stream, task)])
        model.remember(rows[:REMEMBERED], task=task)
    deep = by_evidence(model, stream, ["inputs"])
    for kind in ("accuracy", "task_right"):
        found[kind][f"inputs of {given.features}"] = deep[kind]["inputs"]
    return found | {"numbers_a_task": model.cost().private_per_task}


def of_task(stream: DrawnTasks, task: int) -> range:
    """The steps of a task."""
    return range(task * stream.period, (task + 1) * stream.period)


@torch.no_grad()
def by_evidence(
    model: Any, stream: DrawnTasks, kinds: Any = ("outputs", "entropy")
) -> dict[str, Any]:
    """Accuracy, and the share of rows whose task is right: told, and by each kind of evidence."""
    right, recognised, total = dict.fromkeys(["told", *kinds], 0), dict.fromkeys(kinds, 0), 0
    for task in range(stream.tasks):
        x, y = (tensor[:TESTED] for tensor in stream.test(task))
        total += len(y)
        right["told"] += int((model(x, task=task).argmax(1) == y).sum())
        for kind in kinds:
            for rows, labels in zip(x.split(50), y.split(50), strict=True):
                names = model.recognise(rows, evidence=kind).task
                right[kind] += int((model(rows, task=names).argmax(1) == labels).sum())
                recognised[kind] += sum(one == task for one in names)
    return {
        "accuracy": {kind: 100 * count / total for kind, count in right.items()},
        "task_right": {kind: 100 * count / total for kind, count in recognised.items()},
    }


def main() -> None:
    """Measure what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=PROTOCOLS)
    parser.add_argument("--runs", type=Path, default=Path("runs/recognise"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in given.names:
        found = measure(name, given.runs)
        path = RESULTS / f"cifar100-{name}.json"
        path.write_text(json.dumps(found, indent=2) + "\n")
        print(json.dumps(found, indent=2), flush=True)


if __name__ == "__main__":
    main()
