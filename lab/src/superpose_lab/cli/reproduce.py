"""`superpose-lab reproduce`: the figures and tables of the paper."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction, arg, configure

from superpose_lab.checks import at_least_one
from superpose_lab.figures import FigureName, Scale
from superpose_lab.options import DataDir, Flag, for_terminal, unset

if TYPE_CHECKING:
    from superpose_lab.figures.produce import Place
    from superpose_lab.figures.table import Table


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class ReproduceCommand:
    """Reproduce figures and tables of the paper, and compare the numbers.

    Missing runs are trained, finished runs are used again, and stopped runs resume.

    Example: superpose-lab reproduce fig-methods --scale quick --jobs 2
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
    • the cause, where a claim differs: zenke, released,
      rates-permuting, rates-rotating, icifar-scratch
    • tasks that are recognised:
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
    seeds: Annotated[int | None, unset("INT", "those of the scale")] = None
    """The number of seeds of every run; recognise-… has one."""
    jobs: int = 1
    """How many runs to train at the same time, one process each."""
    only: UseAppendAction[tuple[str, ...]] = ()
    """Train only runs with this word in their name, such as u256 or binary."""
    draw_only: Flag = False
    """Train nothing; draw the runs that are finished."""
    page: Annotated[Path | None, unset("FILE", "no page")] = None
    """Also write all figures and claims of this scale as a page of Markdown."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("results")
    """The directory of the results and pictures."""
    runs: Annotated[Path, arg(metavar="DIR")] = Path("runs")
    """The directory of the runs."""
    data_dir: DataDir = None
    """The directory of the data sets."""
    quiet: Flag = False
    """Show no progress, only the result."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        at_least_one(jobs=self.jobs, seeds=1 if self.seeds is None else self.seeds)
        from superpose_lab.figures import page, produce
        from superpose_lab.files import write

        place = produce.Place(self.scale, self.out, self.runs)
        asked = [self.name, *self.more]
        names = list(get_args(FigureName)) if "all" in asked else list(dict.fromkeys(asked))
        if not self.draw_only:
            self._train(names, place)
        tables = {
            name: produce.make(name, place, self.data_dir, compute=not self.draw_only)
            for name in names
        }
        if self.page is not None:
            write(self.page, page.page(place, self.page.absolute().parent).encode())
        if self.json:
            print(json.dumps([_fact(name, table, place) for name, table in tables.items()]))
        else:
            self._report(tables, place)

    def _train(self, names: list[str], place: "Place") -> None:
        from superpose.learning import Interrupted
        from superpose_lab.figures import produce

        quiet = self.quiet or self.json
        try:
            produce.train_missing(
                names,
                place,
                seeds=self.seeds,
                at_once=self.jobs,
                only=self.only,
                data_dir=self.data_dir,
                display=lambda labels: for_terminal(labels if len(labels) <= 12 else (), quiet),
            )
        except Interrupted as stopped:
            print(f"\n{stopped}; the same command continues", file=sys.stderr)
            raise

    def _report(self, tables: "dict[str, Table]", place: "Place") -> None:
        from rich.console import Console
        from rich.table import Table as Grid

        console = Console(highlight=False)
        for name, table in tables.items() if not self.quiet else ():
            grid = Grid("claim", "paper", "measured", "", box=None, pad_edge=False)
            grid.title, grid.title_justify, grid.title_style = f"\n{name}", "left", "bold"
            for claim in table.claims:
                grid.add_row(claim.text, claim.theirs, claim.ours, claim.outcome)
            console.print(grid, markup=False)
        for name, table in tables.items():
            if table.missing:
                console.print(f"{name}: runs that are missing, and not drawn: {len(table.missing)}")
        console.print(f"written to {place.folder}", soft_wrap=True)


def _fact(name: str, table: "Table", place: "Place") -> dict[str, Any]:
    from dataclasses import asdict

    picture = place.picture(name)
    return {
        "name": name,
        "scale": place.scale,
        "missing": table.missing,
        "rows": table.rows,
        "claims": [asdict(claim) for claim in table.claims],
        "picture": str(picture) if picture.exists() else None,
    }
