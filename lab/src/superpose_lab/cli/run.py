"""`superpose-lab run`: one experiment, one seed."""

import json
import os
import sys
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, configure

from superpose import SuperposeError
from superpose_lab.experiments.settings import Settings, spelled
from superpose_lab.options import Flag, for_terminal, unset


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class RunCommand(Settings):
    """Train one network on an experiment of the paper, with one method.

    A stopped run continues with --resume. Defaults are the paper's settings.

    Example: superpose-lab run permuting-mnist --method binary --tasks 10 --out runs/binary
    """

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
        from superpose.learning import Interrupted
        from superpose_lab.experiments.jobs import Job

        if self.resume and self.out is None:
            raise SuperposeError("--resume needs --out DIR: the directory of the run to continue")
        stamp = time.strftime("%Y%m%d-%H%M%S")
        out = self.out or Path("runs") / f"{self.experiment}-{self.method}-{stamp}"
        settings = Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})
        options = {name: getattr(self, name) for name in ("resume", "save_every", "tensorboard")}
        display = for_terminal([self.method], quiet=self.quiet or self.json)
        try:
            result = Job(settings, out, self.method, options).run(display)
        except Interrupted as stopped:
            again = vars(replace(self, out=out, resume=True))
            plain = {f.name: f.default for f in fields(self)} | {"experiment": self.experiment}
            command = spelled(["superpose-lab", "run", self.experiment], again, plain)
            print(f"\n{stopped}; continue with\n  {command}", file=sys.stderr)
            raise
        if os.environ.get("RANK", "0") != "0":
            return  # of the processes that torchrun started, the first one reports
        if self.json:
            print(json.dumps(result))
        else:
            self._report(result, out)

    def _report(self, result: dict[str, Any], out: Path) -> None:
        from rich.console import Console
        from rich.table import Table

        from superpose_lab.experiments.jobs import SUMMARY

        title = f"{self.experiment}, {self.method}"
        table = Table("accuracy", "%", title=title, title_justify="left", box=None)
        table.columns[1].justify = "right"
        for name in SUMMARY:
            table.add_row(name.replace("_", " "), f"{100 * result[name]:.2f}")
        console = Console(highlight=False)
        console.print(table)
        if "found" in result:
            changes = len(result["found"]["spans"]) - 1
            contexts = result["found"]["contexts"]
            console.print(f"{contexts} contexts begun; changes noticed: {changes}")
        numbers, seconds = result["numbers"]["stored"], result["timings"]["seconds"]
        console.print(f"{numbers:,} numbers stored, {seconds:.0f} seconds")
        console.print(f"written to {out}", soft_wrap=True)
