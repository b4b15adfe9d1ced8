"""`superpose-lab collect`: run directories become lines of the results."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg, configure

from superpose_lab.options import Flag


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class CollectCommand:
    """Bring finished runs into the results: one JSON-lines file an experiment, one line a run.

    Runs may have been made by `run`, `reproduce` or benchmarks/pretrained.py, on any machine.
    Lines that are there already stay.

    Example: superpose-lab collect runs --out results
    """

    folder: Annotated[Positional[Path], arg(metavar="DIR")]
    """A directory with finished runs below it."""
    more: Annotated[
        Positional[tuple[Path, ...]], arg(metavar="[DIR …]", help_behavior_hint="")
    ] = ()
    """More directories."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("results")
    """The directory of the results."""
    json: Flag = False
    """Print the names of the new lines as JSON and nothing else."""

    def run(self) -> None:
        from superpose_lab.collect import collect
        from superpose_lab.results import Results

        names = collect([self.folder, *self.more], Results(self.out))
        if self.json:
            print(json.dumps(names))
        else:
            print("\n".join([*names, f"{len(names)} new lines in {self.out}"]))
