"""`superpose-lab demo`: the main job in a few minutes."""

import json
import sys
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import FlagCreatePairsOff, configure

from superpose import SuperposeError
from superpose_lab.experiments.settings import Settings, spelled
from superpose_lab.options import DataDir, Flag, for_terminal, unset

ABOUT = """\
{tasks} tasks, one after the other, in one network. Each task is to recognise
{images}, their pixels in an order of its own.

  standard   a plain network
  binary     the same network with the paper's superposition
  ours       with our recipe: hadamard+projection, centred by task
"""
NEXT = """
Next, compare all families of contexts (tens of minutes):
  superpose-lab reproduce fig-methods --scale quick"""


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class DemoCommand:
    """Show that one network can learn ten tasks in a row and keep the first.

    A plain network, the paper's method and our recipe learn the same tasks.

    Example: superpose-lab demo --dataset digits --out runs/demo
    """

    dataset: Annotated[
        Literal["mnist", "digits"] | None, unset("NAME", "mnist; digits if it cannot be downloaded")
    ] = None
    """The images: mnist or digits."""
    tasks: int = 10
    """The number of tasks."""
    steps: int = 1000
    """Training steps for each task."""
    units: int = 256
    """Units in each of the two hidden layers."""
    seed: int = 0
    """The seed of the data, the weights and the contexts."""
    jobs: int = 2
    """How many methods to run at the same time, one process each."""
    out: Annotated[Path | None, unset("DIR", "a new directory in runs/")] = None
    """The directory for the runs and the figure."""
    resume: Flag = False
    """Continue the demo in --out that was stopped."""
    data_dir: DataDir = None
    """The directory of the data sets."""
    quiet: Flag = False
    """Show no progress, only the result."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        from superpose.learning import Interrupted
        from superpose_lab import demo

        if self.resume and self.out is None:
            raise SuperposeError("--resume needs --out DIR: the directory of the demo to continue")
        say = (lambda text: None) if self.quiet or self.json else print
        dataset, missing = (self.dataset, "") if self.dataset else demo.choose(self.data_dir)
        if missing:
            say(f"MNIST is not here, so the demo uses smaller images: {missing}")
        say(ABOUT.format(tasks=self.tasks, images=demo.IMAGES[dataset]))
        out = self.out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            results = self._learn(dataset, out)
        except Interrupted as stopped:
            again = vars(replace(self, out=out, resume=True)) | {"dataset": dataset}
            plain = {option.name: option.default for option in fields(self)}
            command = spelled(["superpose-lab", "demo"], again, plain)
            print(f"\n{stopped}; continue with\n  {command}", file=sys.stderr)
            raise
        picture = demo.draw(out)
        if self.json:
            print(json.dumps({"dataset": dataset, "out": str(out), "results": results}))
        else:
            report(results, picture, quiet=self.quiet)

    def _learn(self, dataset: str, out: Path) -> dict[str, dict[str, Any]]:
        from superpose_lab.demo import METHODS
        from superpose_lab.experiments.jobs import Job, side_by_side

        settings = Settings(
            experiment="permuting-mnist",
            dataset=dataset,
            tasks=self.tasks,
            steps=self.steps,
            units=self.units,
            evaluate_every=max(self.steps // 4, 1),
            matrix="ends",
            seed=self.seed,
            data_dir=self.data_dir,
        )
        jobs = [
            Job(replace(settings, **given), out / name, name, {"resume": self.resume})
            for name, given in METHODS.items()
        ]
        display = for_terminal(list(METHODS), quiet=self.quiet or self.json)
        return dict(zip(METHODS, side_by_side(jobs, self.jobs, display), strict=True))


def report(results: dict[str, dict[str, Any]], picture: Path, quiet: bool) -> None:
    """Print the table, a summary in one sentence, and the next command."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    columns = ("network", "first task", "last task", "all tasks", "numbers stored", "seconds")
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name in reversed(results):
        result = results[name]
        accuracies = (result[each] for each in ("first_task", "last_task", "mean_all"))
        table.add_row(
            name,
            *(f"{100 * value:.1f} %" for value in accuracies),
            f"{result['numbers']['stored']:,}",
            f"{result['timings']['seconds']:.0f}",
        )
    console = Console(highlight=False)
    console.print("\nTest accuracy after all tasks were learned")
    console.print(table)
    console.print(f"Figure: {picture}", soft_wrap=True)
    if not quiet:
        kept = {name: f"{100 * result['first_task']:.1f} %" for name, result in results.items()}
        console.print(
            f"\nLearned: after {len(results['ours']['final'])} tasks a plain network gets "
            f"{kept['standard']} of the first task right; the same network in superposition gets "
            f"{kept['binary']} with the paper's method and {kept['ours']} with our recipe.",
            markup=False,
        )
        console.print(NEXT, soft_wrap=True, markup=False)
