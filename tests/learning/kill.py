"""Kill a run again and again at random moments; it must end as one that was never killed.

    python tests/learning/kill.py --kills 10

Prints how many of the kills hit a run that had begun, and at which steps it went on from.
"""

import os
import random
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from superpose.data import load
from superpose.experiments.run import Job, run
from superpose.experiments.settings import Settings
from superpose.learning import Quiet

SAME = ("metrics.jsonl", "result.json")


@dataclass
class Kill:
    kills: int = 10
    seed: int = 0
    dataset: str = "digits"
    method: str = "binary+si"
    tasks: int = 4
    steps: int = 100
    save_every: float = 0.0

    def run(self) -> None:
        warnings.simplefilter("error")
        load(self.dataset)  # so that the processes that are forked start at once
        moments = random.Random(self.seed)
        with tempfile.TemporaryDirectory() as folder:
            whole, killed = Path(folder) / "whole", Path(folder) / "killed"
            start = time.perf_counter()
            assert self._wait(self._start(whole)) == 0
            seconds = time.perf_counter() - start
            steps = []
            for _ in range(self.kills):
                process = self._start(killed)
                # Short enough that the run outlives all of the kills.
                time.sleep(moments.uniform(0, 1.5 * seconds / self.kills))
                os.kill(process, signal.SIGKILL)
                assert self._wait(process) == -signal.SIGKILL, "it ended before it was killed"
                steps.append(_step(killed))
            assert self._wait(self._start(killed)) == 0
            for name in SAME:
                assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
            assert any(steps), "no kill came after a checkpoint: nothing was shown"
            left = sorted(path.name for path in killed.iterdir())
            assert not [name for name in left if name.endswith(".new")], left
        print(f"{self.kills} kills, {seconds:.1f} s a run; it went on from steps {steps}")

    def _start(self, out: Path) -> int:
        process = os.fork()
        if process:
            return process
        try:
            settings = Settings(
                experiment="permuting-mnist",
                method=self.method,
                dataset=self.dataset,
                units=32,
                tasks=self.tasks,
                steps=self.steps,
                evaluate_every=30,
                schedule="cosine",
                lr=1e-3,
                optimiser="adam",
            )
            run(Job(settings, out, "", {"resume": True, "save_every": self.save_every}), Quiet())
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)

    def _wait(self, process: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _step(out: Path) -> int:
    path = out / "checkpoint.pt"
    return torch.load(path, weights_only=True)["step"] if path.exists() else 0


if __name__ == "__main__":
    tyro.cli(Kill, description=__doc__).run()
