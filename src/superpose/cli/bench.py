"""`superpose bench`: what superposition costs in time, as ratios."""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import FlagCreatePairsOff, UseAppendAction, configure

from superpose.errors import SuperposeError
from superpose.options import Flag, unset

if TYPE_CHECKING:
    from rich.console import Console


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class BenchCommand:
    """Measure the speed of superposed networks beside plain ones.

    Both run in turns in one process, and the result is the ratio of their times.

    Example: superpose bench --only LLaMA --rounds 10 --out bench.json
    """

    rounds: int = 40
    """How often each pair is timed; slow pairs are timed less often."""
    threads: int = 1
    """The number of threads that PyTorch uses."""
    device: str = "cpu"
    """The device to measure on: cpu, cuda or mps."""
    growth: Flag = False
    """Also measure how time grows with tasks, width and batch size (a few minutes more)."""
    only: UseAppendAction[tuple[str, ...]] = ()
    """Measure only rows with this word in their name, such as LLaMA."""
    check: Flag = False
    """Exit with code 1 if a ratio misses its goal by more than its spread."""
    out: Annotated[Path | None, unset("FILE", "print only")] = None
    """The JSON file to write the result to."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Measure, print, and fail if asked to."""
        from superpose.learning.run_directory import write

        if self.rounds < 1 or self.threads < 1:
            raise SuperposeError(
                f"--rounds {self.rounds} --threads {self.threads}: both must be at least 1"
            )
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            result = self._measure(Path(folder))
        if self.out:
            write(self.out, (json.dumps(result, indent=1) + "\n").encode())
        if self.json:
            print(json.dumps(result))
        rows = [*result["rows"], *result["amounts"]]
        late = [row["name"] for row in rows if row["low"] > row["goal"]]
        if self.check and late:
            raise SuperposeError(f"goals missed: {'; '.join(late)}")

    def _wanted(self, name: str) -> bool:
        return not self.only or any(word in name for word in self.only)

    def _measure(self, folder: Path) -> dict[str, Any]:
        import torch
        from rich.console import Console

        from superpose.lab import bench, many_tasks
        from superpose.lab.timing import measure

        torch.set_num_threads(self.threads)
        try:
            device = torch.device(self.device)
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise SuperposeError(f"--device {self.device}: {error}") from error
        console = Console(stderr=self.json, quiet=self.json)
        kinds = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
        synchronise = kinds.get(device.type, lambda: None)
        many = many_tasks.networks(device, folder)
        of_many = (row for each in many for row in each.comparisons(self.rounds))
        rows = (*bench.comparisons(device, self.rounds), *of_many, bench.imports())
        wanted = [row for row in rows if self._wanted(row.name)]
        amounts = [row for each in many for row in each.amounts() if self._wanted(row.name)]
        if not wanted and not amounts:
            raise SuperposeError(
                f"--only {' '.join(self.only)}: no row has this in its name; leave --only out to "
                "see all rows"
            )
        with console.status("measuring"):
            measured = [measure(row, synchronise) for row in wanted if not row.lacks]
            result: dict[str, Any] = {
                "rows": [row.as_dict() for row in measured],
                "amounts": [row.as_dict() for row in amounts],
                "first_use_ms": {} if self.only else bench.first_use(),
                "memory": {} if self.only else bench.memory(),
                "growth": list(bench.growth(device, self.rounds, synchronise))
                if self.growth
                else [],
                "skipped": [row.lacks for row in wanted if row.lacks],
                "device": self.device,
                "threads": self.threads,
                "torch": torch.__version__,
                "command": "superpose " + " ".join(sys.argv[1:]),
            }
        _show(result, console)
        return result


def _show(result: dict[str, Any], console: "Console") -> None:
    from rich.table import Table

    shown = Table("what", "against", "goal", "measured", "spread", "ms")
    for row in result["rows"]:
        shown.add_row(*_cells(row, row["ratio"], ""), f"{row['milliseconds']:.2f}")
    for row in result["amounts"]:
        shown.add_row(*_cells(row, row["value"], row["unit"]), "")
    console.print(shown)
    for note in result["skipped"]:
        console.print(f"not measured: {note}")
    if result["memory"]:
        console.print(f"first use of a task, ms: {_told(result['first_use_ms'])}")
        console.print(f"64 tasks in the memory of one: {_told(result['memory'])}")


def _cells(row: dict[str, Any], value: float, unit: str) -> list[str]:
    measured = f"[{'green' if row['met'] else 'red'}]{value:.3f}[/] {unit}".strip()
    spread = f"{row['low']:.2f}–{row['high']:.2f}"
    return [row["name"], row["against"], f"{row['goal']:.3g} {unit}".strip(), measured, spread]


def _told(facts: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in facts.items())
