"""What data costs beside learning: turning a batch of 128 MNIST images against one training step.

    OMP_NUM_THREADS=1 python benchmarks/rotating.py --out results/data/rotating.json

The step is forward, backward and RMSprop on two hidden layers of 256 units. All are timed in turn
within each round, so that whatever else the machine does hits all of them; a ratio is the median
of the rounds' ratios.
"""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import nn

from superpose_lab.data import Permuting, Rotating, load, rotate

GOAL = 0.2
CALLS = 10  # of each, in a round


@dataclass
class Benchmark:
    out: Path | None = None
    rounds: int = 200
    dataset: str = "mnist"

    def run(self) -> None:
        torch.manual_seed(0)
        data = load(self.dataset)
        rotating, permuting = Rotating(data), Permuting(data)
        images = torch.from_numpy(data.train.images[:128])
        steps = count(1001)  # past the upright image and the unpermuted task
        works: dict[str, Callable[[], object]] = {
            "training step": _training(rotating),
            "rotate": lambda: rotate(images, rotating.angle_at(next(steps))),
            "rotating batch": lambda: rotating.batch(next(steps) % len(rotating)),
            "permuting batch": lambda: permuting.batch(next(steps) % len(permuting)),
        }
        times = np.array([[_time(work) for work in works.values()] for _ in range(self.rounds + 5)])
        times = times[5:]  # the first ones warm up
        ratios = times / times[:, :1]
        result = {
            "command": f"python benchmarks/rotating.py --rounds {self.rounds}",
            "batch": 128,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "rounds": self.rounds,
            "goal": f"rotate costs at most {GOAL} of a training step",
            "met": bool(np.median(ratios[:, 1]) <= GOAL),
            "microseconds": _spread(works, times * 1e6, 1),
            "of a training step": _spread(works, ratios, 4),
        }
        text = json.dumps(result, indent=2)
        print(text)
        if self.out is not None:
            self.out.write_text(text + "\n")


def _training(stream: Rotating) -> Callable[[], None]:
    x, y, *_ = stream.batch(0)
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(x[0].numel(), 256, bias=False),
        nn.ReLU(),
        nn.Linear(256, 256, bias=False),
        nn.ReLU(),
        nn.Linear(256, stream.classes, bias=False),
    )
    optimiser = torch.optim.RMSprop(net.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()

    return step


def _time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        work()
    return (time.perf_counter() - start) / CALLS


def _spread(names: dict[str, Callable[[], object]], values: np.ndarray, digits: int) -> object:
    quantiles = np.quantile(values, [0.05, 0.5, 0.95], axis=0).T.round(digits).tolist()
    keys = ("5%", "median", "95%")
    return {
        name: dict(zip(keys, row, strict=True)) for name, row in zip(names, quantiles, strict=True)
    }


if __name__ == "__main__":
    tyro.cli(Benchmark, description=__doc__).run()
