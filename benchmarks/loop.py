"""What the loop costs beside the least one could write by hand, and how tasks are best tested.

    OMP_NUM_THREADS=1 python benchmarks/loop.py --out results/learning/loop.json

Both loops learn permuted MNIST with two hidden layers of 256 units, batch 128, RMSprop. They take
turns of 50 steps within one run, so that whatever else the machine does hits both; a ratio is that
of one turn to the turn by hand before it. `train` writes its run to a directory, saved every
30 seconds, as `superpose-lab run` does.

Testing ten tasks is timed task by task and as batches of rows of all ten, in turn as well.
"""

import json
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

import superpose as sp
from superpose.learning import Quiet, accuracy, train
from superpose_lab.data import Permuting, load
from superpose_lab.networks import MLP

GOAL = 1.10
TURN = 50  # steps


@dataclass
class Benchmark:
    out: Path | None = None
    turns: int = 200
    methods: tuple[str, ...] = ("standard", "binary", "hadamard")
    dataset: str = "mnist"

    def run(self) -> None:
        data = load(self.dataset)
        ratios = {name: self._loop(name, Permuting(data, tasks=10)) for name in self.methods}
        result = {
            "command": f"python benchmarks/loop.py --turns {self.turns} "
            f"--methods {' '.join(self.methods)}",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "goal": f"a step of the loop costs at most {GOAL} of one by hand",
            "met": all(each["of a step by hand"]["median"] <= GOAL for each in ratios.values()),
            "loop": ratios,
            "testing ten tasks": {
                "MNIST, 10,000 rows each": self._testing(Permuting(data, tasks=10)),
                "digits, 360 rows each": self._testing(Permuting(load("digits"), tasks=10)),
            },
        }
        text = json.dumps(result, indent=2)
        print(text)
        if self.out is not None:
            self.out.write_text(text + "\n")

    def _loop(self, method: str, stream: Permuting) -> dict[str, object]:
        turns = Turns(stream, self.turns * TURN, _by_hand(method, stream))
        with tempfile.TemporaryDirectory() as folder:
            train(_net(stream), turns, method, evaluate_every=10**9, display=Quiet(), out=folder)
        times = np.array(turns.times[2:])  # the first ones warm up
        milliseconds = times * (1e3 / TURN)
        return {
            "milliseconds a step by hand": _spread(milliseconds[:, 0]),
            "milliseconds a step of the loop": _spread(milliseconds[:, 1]),
            "of a step by hand": _spread(times[:, 1] / times[:, 0]),
        }

    def _testing(self, stream: Permuting, rounds: int = 5) -> dict[str, object]:
        model = sp.superpose(_net(stream), "binary", tasks=10, private="none").eval()
        tests = [stream.test(task) for task in range(10)]
        x, y = (torch.cat(parts) for parts in zip(*tests, strict=True))
        task = torch.arange(10).repeat_interleave(len(tests[0][1]))
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        x, y, task = x[order], y[order], task[order]

        def by_task() -> float:
            return sum(accuracy(model, *test, k) for k, test in enumerate(tests)) / 10

        @torch.no_grad()
        def mixed() -> float:
            rows = zip(x.split(1000), y.split(1000), task.split(1000), strict=True)
            return sum(int((model(a, task=t).argmax(1) == b).sum()) for a, b, t in rows) / len(y)

        assert abs(by_task() - mixed()) < 1e-6
        times = np.array([[_time(by_task), _time(mixed)] for _ in range(rounds)])
        return {
            "milliseconds task by task": _spread(times[:, 0] * 1e3),
            "milliseconds mixed": _spread(times[:, 1] * 1e3),
            "mixed of task by task": _spread(times[:, 1] / times[:, 0]),
        }


@dataclass
class Turns:
    """A stream that lets the loop by hand have its turn before each turn of the loop."""

    inner: Permuting
    steps: int
    by_hand: Callable[[range], None]
    times: list[tuple[float, float]] = field(default_factory=list)
    tasks: int = 1
    contexts: int = 10

    def __len__(self) -> int:
        return self.steps

    def task_at(self, step: int) -> int:
        return 0

    def batch(self, step: int) -> tuple[Tensor, Tensor, int, int]:
        if step % TURN == 0:
            start = time.perf_counter()
            if step:
                self.times.append((self._hand, start - self._start))
            self.by_hand(range(step, step + TURN))
            self._start = time.perf_counter()
            self._hand = self._start - start
        return self.inner.batch(step % len(self.inner))

    def test(self, task: int) -> tuple[Tensor, Tensor]:
        return self.inner.test(task)


def _net(stream: Permuting) -> nn.Module:
    torch.manual_seed(0)
    return MLP(stream.input_shape[0], 256, stream.classes)


def _by_hand(method: str, stream: Permuting) -> Callable[[range], None]:
    plain = method == "standard"
    net = _net(stream) if plain else sp.superpose(_net(stream), method, tasks=10)
    optimiser = torch.optim.RMSprop(net.parameters(), lr=1e-4)

    def learn(steps: range) -> None:
        for step in steps:
            x, y, _, context = stream.batch(step % len(stream))
            loss = F.cross_entropy(net(x) if plain else net(x, task=context), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return learn


def _time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _spread(values: np.ndarray) -> dict[str, float]:
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95]).round(4).tolist()
    return {"5%": low, "median": middle, "95%": high}


if __name__ == "__main__":
    tyro.cli(Benchmark, description=__doc__).run()
