"""`superpose bench`: what superposition costs in time, as ratios."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro.conf import FlagCreatePairsOff, arg, configure

from superpose.errors import SuperposeError


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class BenchCommand:
    """Measure superposed networks beside plain ones, in turns, in one process.

    Example: superpose bench --rounds 40 --out bench.json
    """

    rounds: int = 40
    """How often each pair is timed; slow pairs less often."""
    threads: int = 1
    """Threads that PyTorch uses."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    growth: bool = False
    """Also measure how cost grows with tasks, width and rows (a few minutes)."""
    check: bool = False
    """Exit with 1 if a ratio is past its goal by more than its spread."""
    out: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the result to this JSON file."""
    json: bool = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Measure, print, and fail if asked to."""
        from superpose.learning.run_directory import write

        if self.rounds < 1 or self.threads < 1:
            raise SuperposeError("--rounds and --threads are at least 1")
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
        result = self._measure()
        if self.out:
            write(self.out, (json.dumps(result, indent=1) + "\n").encode())
        if self.json:
            print(json.dumps(result))
        late = [row["name"] for row in result["rows"] if row["low"] > row["goal"]]
        if self.check and late:
            raise SuperposeError(f"slower than their goals: {'; '.join(late)}")

    def _measure(self) -> dict[str, Any]:
        import torch

        from superpose.lab import bench

        torch.set_num_threads(self.threads)
        try:
            device = torch.device(self.device)
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise SuperposeError(f"--device {self.device}: {error}") from error
        console = Console(stderr=self.json, quiet=self.json)
        shown = Table("what", "against", "goal", "ratio", "spread", "ms")
        kinds = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
        synchronise = kinds.get(device.type, lambda: None)
        rows = []
        with console.status("measuring"):
            for comparison in bench.comparisons(device, self.rounds):
                rows.append(bench.measure(comparison, synchronise))
            rows.append(bench.imports())
            result: dict[str, Any] = {
                "rows": [row.as_dict() for row in rows],
                "first_use_ms": bench.first_use(),
                "conversion": bench.conversion(),
                "memory": bench.memory(),
                "growth": list(bench.growth(device, self.rounds, synchronise))
                if self.growth
                else [],
                "device": self.device,
                "threads": self.threads,
                "torch": torch.__version__,
                "command": "superpose " + " ".join(sys.argv[1:]),
            }
        for row in rows:
            style = "green" if row.met else "red"
            ratio = f"[{style}]{row.ratio:.3f}[/]"
            spread = f"{row.low:.2f}–{row.high:.2f}"
            shown.add_row(
                row.name, row.against, f"{row.goal:.3g}", ratio, spread, f"{row.milliseconds:.2f}"
            )
        console.print(shown)
        console.print(f"first use of a task, ms: {_told(result['first_use_ms'])}")
        console.print(f"superpose() of ResNet-18 with 1000 tasks: {_told(result['conversion'])}")
        console.print(f"64 tasks in the memory of one: {_told(result['memory'])}")
        return result


def _told(facts: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in facts.items())
