"""`superpose run`: one experiment, for one seed or for several."""

import json
import os
import sys
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import FlagCreatePairsOff, configure

from superpose.errors import SuperposeError, at_least_one
from superpose.lab.experiments.settings import Settings, spelled
from superpose.options import Flag, unset

if TYPE_CHECKING:
    from superpose.lab.experiments.jobs import Job


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class RunCommand(Settings):
    """Train one network on an experiment of the paper, with one method.

    A stopped run continues with --resume. Defaults are the paper's settings.

    Example: superpose run permuting-mnist --method binary --tasks 10 --out runs/binary
    """

    seeds: int = 1
    """The number of seeds to run, counted from --seed."""
    jobs: int = 1
    """How many seeds to run at the same time, one process each."""
    out: Annotated[Path | None, unset("DIR", "a new directory in runs/")] = None
    """The directory of the run."""
    resume: Flag = False
    """Continue the run in --out, or start it if there is none."""
    save_every: float = 30.0
    """Seconds between checkpoints."""
    tensorboard: Flag = False
    """Also write a TensorBoard log to the directory of the run."""
    quiet: Flag = False
    """Show no progress, only the result."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Run, and print the result."""
        from superpose.learning import Interrupted

        at_least_one(seeds=self.seeds, jobs=self.jobs)
        if self.resume and self.out is None:
            raise SuperposeError("--resume needs --out DIR: the directory of the run to continue")
        named = replace(self, out=self.out or self._new_directory())
        try:
            result = named._run_seeds() if self.seeds > 1 else named._run_one()
        except Interrupted as stopped:
            print(f"\n{stopped}; continue with\n  {named.command(resume=True)}", file=sys.stderr)
            raise
        if os.environ.get("RANK", "0") != "0":
            return  # of the processes that torchrun started, the first one speaks
        if self.json:
            print(json.dumps(result))
        else:
            named._report(result)

    def command(self, resume: bool) -> str:
        """The command line that says this."""
        given = vars(replace(self, resume=resume))
        plain = {option.name: option.default for option in fields(self)}
        named = {"experiment": self.experiment}
        return spelled(["superpose", "run", self.experiment], given, plain | named)

    def _run_one(self) -> dict[str, Any]:
        from superpose.lab.experiments.jobs import run
        from superpose.learning.display import for_terminal

        job = self._job(self.seed, self.out)
        outcome = run(job, for_terminal([job.label], quiet=self.quiet or self.json))
        return {**outcome.result, "timings": outcome.timings}

    def _run_seeds(self) -> dict[str, Any]:
        from superpose.lab.experiments.jobs import side_by_side, spread
        from superpose.learning.display import for_terminal
        from superpose.learning.run_directory import write

        assert self.out is not None
        if "WORLD_SIZE" in os.environ:
            raise SuperposeError(
                f"--seeds {self.seeds}: the processes of torchrun train one seed together; leave "
                "--seeds out"
            )
        if (self.out / "config.json").exists():
            raise SuperposeError(
                f"{self.out} holds the run of one seed: choose another directory for several"
            )
        seeds = range(self.seed, self.seed + self.seeds)
        jobs = [self._job(seed, self.out / f"seed-{seed}") for seed in seeds]
        display = for_terminal([job.label for job in jobs], quiet=self.quiet or self.json)
        runs = side_by_side(jobs, self.jobs, display)
        result = {"method": self.method, "seeds": list(seeds), **spread(runs)}
        write(self.out / "result.json", (json.dumps(result, indent=2) + "\n").encode())
        return {**result, "runs": runs}

    def _job(self, seed: int, out: Path | None) -> "Job":
        from superpose.lab.experiments.jobs import Job

        settings = Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})
        options = {
            "resume": self.resume,
            "save_every": self.save_every,
            "tensorboard": self.tensorboard,
        }
        label = f"{self.method} seed {seed}" if self.seeds > 1 else self.method
        return Job(replace(settings, seed=seed), out, label, options)

    def _new_directory(self) -> Path:
        name = f"{self.experiment}-{self.method}-{time.strftime('%Y%m%d-%H%M%S')}"
        return Path("runs") / name

    def _report(self, result: dict[str, Any]) -> None:
        from rich.console import Console
        from rich.table import Table

        from superpose.lab.experiments.jobs import SUMMARY

        title = f"{self.experiment}, {self.method}" + (
            f", {self.seeds} seeds: mean ± deviation" if self.seeds > 1 else ""
        )
        table = Table("accuracy", "%", title=title, title_justify="left", box=None)
        table.columns[1].justify = "right"
        for name in SUMMARY:
            found = result[name]
            if isinstance(found, dict):
                text = f"{100 * found['mean']:.2f} ± {100 * found['deviation']:.2f}"
            else:
                text = f"{100 * found:.2f}"
            table.add_row(name.replace("_", " "), text)
        console = Console(highlight=False)
        console.print(table)
        if "found" in result:
            changes = len(result["found"]["spans"]) - 1
            console.print(
                f"{result['found']['contexts']} contexts begun; changes noticed: {changes}"
            )
        if "numbers" in result:
            numbers, seconds = result["numbers"]["stored"], result["timings"]["seconds"]
            console.print(f"{numbers:,} numbers stored, {seconds:.0f} seconds")
        console.print(f"written to {self.out}", soft_wrap=True)
