"""`superpose reproduce`: the figures and tables of the paper."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction, arg, configure

from superpose.errors import SuperposeError
from superpose.lab.figures import FigureName, Scale
from superpose.options import DataDir, Flag, unset

if TYPE_CHECKING:
    from superpose.lab.figures.findings import Findings


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class ReproduceCommand:
    """Reproduce figures and tables of the paper, and compare the numbers.

    Missing runs are trained, finished runs are used again, and stopped runs continue.

    Example: superpose reproduce fig-methods --scale quick --jobs 2
    """

    name: Annotated[Positional[Literal[FigureName, "all"]], arg(metavar="NAME")]
    """The figure or table: all, or one of
    • table1, table-average, propositions
    • fig-size, fig-methods, fig-permuting-2000, fig-geometry
    • fig-rotating-samples, fig-rotating-fashion,
      fig-rotating-close, fig-rotating-context,
      fig-rotating-mnist
    • fig-icifar-samples, fig-icifar
    • beyond the paper: recipe, ours, own-numbers,
      icifar-recipe, icifar-ours
    • the task found, not told:
      recognise-permuted-10, recognise-permuted-50,
      recognise-permuted-250, recognise-rotated,
      recognise-evidence, recognise-doubt,
      recognise-returning, recognise-stream,
      recognise-rotating-fashion, recognise-cifar100"""
    more: Annotated[
        Positional[tuple[FigureName, ...]], arg(metavar="[NAME …]", help_behavior_hint="")
    ] = ()
    """More figures or tables."""
    scale: Scale = "quick"
    """smoke: seconds; quick: tens of minutes on two cores; paper: the paper's settings."""
    seeds: Annotated[int | None, unset("INT", "as many as the scale asks for")] = None
    """The number of seeds of every run; recognise-… has one."""
    jobs: int = 1
    """How many runs to train at the same time, one process each."""
    only: UseAppendAction[tuple[str, ...]] = ()
    """Train only runs with this word in the name of their directory, such as u256 or binary."""
    adopt: UseAppendAction[tuple[Path, ...]] = ()
    """First copy the finished runs in this directory to their places in --out."""
    draw_only: Flag = False
    """Train nothing; draw the runs that are finished."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("results")
    """The directory of the results; runs of earlier calls are found there."""
    data_dir: DataDir = None
    """The directory of the data sets."""
    quiet: Flag = False
    """Show no progress, only the result."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Run, draw, and tell how it stands to the paper."""
        if self.jobs < 1 or (self.seeds is not None and self.seeds < 1):
            raise SuperposeError(
                f"--seeds {self.seeds} --jobs {self.jobs}: both must be at least 1"
            )
        from superpose.lab.figures import produce

        names = self._names()
        for source in self.adopt:
            for taken in produce.adopt(source, names, self.scale, self.out):
                self._say(f"adopted {taken}")
        if not self.draw_only:
            self._train(names)
        tables = [
            produce.make(name, self.scale, self.out, self.data_dir, compute=not self.draw_only)
            for name in names
        ]
        if self.json:
            print(json.dumps([self._fact(table) for table in tables]))
        else:
            self._report(tables)

    def _names(self) -> list[str]:
        asked = [self.name, *self.more]
        return list(get_args(FigureName)) if "all" in asked else list(dict.fromkeys(asked))

    def _train(self, names: list[str]) -> None:
        from superpose.lab.figures import produce
        from superpose.learning import Interrupted
        from superpose.learning.display import for_terminal

        quiet = self.quiet or self.json
        try:
            produce.train_missing(
                names,
                self.scale,
                self.out,
                seeds=self.seeds,
                at_once=self.jobs,
                only=self.only,
                data_dir=self.data_dir,
                display=lambda labels: for_terminal(labels if len(labels) <= 12 else (), quiet),
            )
        except Interrupted as stopped:
            print(f"\n{stopped}; the same command continues", file=sys.stderr)
            raise

    def _fact(self, table: "Findings") -> dict[str, Any]:
        about = ("name", "scale", "missing", "rows", "checks")
        stem = self.out / self.scale / table["name"]
        found = [stem.with_suffix(end) for end in (".json", ".png", ".svg")]
        files = [str(path) for path in found if path.exists()]
        return {name: table[name] for name in about} | {"files": files}

    def _report(self, tables: list["Findings"]) -> None:
        from rich.console import Console
        from rich.table import Table as Grid

        console = Console(highlight=False)
        for table in tables if not self.quiet else ():
            title = f"\n{table['name']}: {table['title']}"
            grid = Grid("claim", "paper", "measured", "verdict", box=None, pad_edge=False)
            grid.title, grid.title_justify, grid.title_style = title, "left", "bold"
            for check in table["checks"]:
                grid.add_row(*(check[key] for key in ("claim", "paper", "ours", "verdict")))
            console.print(grid, markup=False)
        lacking = {table["name"]: len(table["missing"]) for table in tables if table["missing"]}
        for name, count in lacking.items():
            console.print(f"{name}: runs that are missing, and not drawn: {count}")
        console.print(f"written to {self.out / self.scale}", soft_wrap=True)

    def _say(self, text: str) -> None:
        if not (self.quiet or self.json):
            print(text)
