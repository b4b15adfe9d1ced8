"""Kill a run again and again at random moments; it must end as one that was never killed.

    python tests/learning/kill.py --kills 10

Prints the steps that were saved at each kill, from which the run went on.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import tyro

from superpose.learning import Quiet
from superpose.learning.run_directory import read_checkpoint
from superpose_lab.experiments.jobs import Job, run
from superpose_lab.experiments.settings import Settings

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
        self._learn(None, tasks=1, steps=1)  # imports all, so that forked processes start at once
        moments = random.Random(self.seed)
        with tempfile.TemporaryDirectory() as folder:
            whole, killed = Path(folder) / "whole", Path(folder) / "killed"
            assert self._wait(self._start(whole)) == 0
            seconds = json.loads((whole / "timings.json").read_text())["seconds"]
            steps = []
            for _ in range(self.kills):
                process = self._start(killed)
                if moments.random() < 0.8:  # the others are killed as they start, or before
                    _until_it_saves(killed)
                # Short enough that the run outlives all of the kills.
                time.sleep(moments.uniform(0, 0.8 * seconds / self.kills))
                os.kill(process, signal.SIGKILL)
                assert self._wait(process) == -signal.SIGKILL, "it ended before it was killed"
                steps.append(_step(killed))
            assert self._wait(self._start(killed)) == 0
            for name in SAME:
                assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
            assert len(set(steps)) > self.kills / 3, "the kills did not fall on different steps"
            left = sorted(path.name for path in killed.iterdir())
            assert not [name for name in left if name.endswith(".new")], left
        print(
            f"{self.kills} kills; the run went on from steps {steps} of {self.tasks * self.steps}"
        )

    def _start(self, out: Path) -> int:
        process = os.fork()
        if process:
            return process
        try:
            self._learn(out, self.tasks, self.steps)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)

    def _learn(self, out: Path | None, tasks: int, steps: int) -> None:
        settings = Settings(
            experiment="permuting-mnist",
            method=self.method,
            dataset=self.dataset,
            units=32,
            tasks=tasks,
            steps=steps,
            evaluate_every=30,
            schedule="cosine",
            lr=1e-3,
            optimiser="adam",
        )
        run(Job(settings, out, "", {"resume": True, "save_every": self.save_every}), Quiet())

    def _wait(self, process: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _until_it_saves(out: Path, patience: float = 60) -> None:
    path, end = out / "checkpoint.pt", time.monotonic() + patience
    before = path.stat().st_mtime_ns if path.exists() else None
    while (path.stat().st_mtime_ns if path.exists() else None) == before:
        assert time.monotonic() < end, "the run does not save"
        time.sleep(0.001)


def _step(out: Path) -> int:
    path = out / "checkpoint.pt"
    return read_checkpoint(path)["step"] if path.exists() else 0


if __name__ == "__main__":
    tyro.cli(Kill, description=__doc__).run()
