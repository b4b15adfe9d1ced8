"""The speed of superposed networks beside plain ones.

    python benchmarks/speed.py                 # all rows
    python benchmarks/speed.py --only LLaMA    # rows with that word in their name
    python benchmarks/speed.py --check         # exits with 1 if a ratio misses its goal
    python benchmarks/speed.py --rounds 30 --growth --out results/speed/bench.json

Both run in turns in one process, and the result is the ratio of their times.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import comparisons
import many_tasks
import torch
import tyro
from rich.console import Console
from rich.table import Table
from timing import measure
from tyro.conf import FlagCreatePairsOff, UseAppendAction, configure


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class Speed:
    rounds: int = 40
    """How often each pair is timed; slow pairs are timed less often."""
    threads: int = 1
    """The number of threads that PyTorch uses."""
    device: str = "cpu"
    """The device to measure on: cpu, cuda or mps."""
    growth: bool = False
    """Also measure how time grows with tasks, width and batch size (a few minutes more)."""
    only: UseAppendAction[tuple[str, ...]] = ()
    """Measure only rows with this word in their name."""
    check: bool = False
    """Exit with code 1 if a ratio misses its goal by more than its spread."""
    out: Path | None = None
    """The JSON file to write the result to."""

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            result = self.measure(Path(folder))
        show(result)
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(result, indent=1) + "\n")
        rows = [*result["rows"], *result["amounts"]]
        late = [row["name"] for row in rows if row["low"] > row["goal"]]
        if self.check and late:
            sys.exit(f"goals missed: {'; '.join(late)}")

    def measure(self, folder: Path) -> dict[str, Any]:
        torch.set_num_threads(self.threads)
        device = torch.device(self.device)
        kinds = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
        synchronise = kinds.get(device.type, lambda: None)
        many = many_tasks.networks(device, folder)
        of_many = (row for each in many for row in each.comparisons(self.rounds))
        rows = (
            *comparisons.comparisons(device, self.rounds),
            *of_many,
            comparisons.imports(),
        )
        wanted = [row for row in rows if self.wants(row.name)]
        amounts = [row for each in many for row in each.amounts() if self.wants(row.name)]
        if not wanted and not amounts:
            sys.exit(f"--only {' '.join(self.only)}: no row has this in its name")
        with Console(stderr=True).status("measuring"):
            measured = [measure(row, synchronise) for row in wanted if not row.lacks]
            growth = comparisons.growth(device, self.rounds, synchronise) if self.growth else ()
            return {
                "rows": [row.as_dict() for row in measured],
                "amounts": [row.as_dict() for row in amounts],
                "first_use_ms": {} if self.only else comparisons.first_use(),
                "memory": {} if self.only else comparisons.memory(),
                "growth": list(growth),
                "skipped": [row.lacks for row in wanted if row.lacks],
                "device": self.device,
                "threads": self.threads,
                "torch": torch.__version__,
                "command": "python benchmarks/speed.py " + " ".join(sys.argv[1:]),
            }

    def wants(self, name: str) -> bool:
        return not self.only or any(word in name for word in self.only)


def show(result: dict[str, Any]) -> None:
    shown = Table("action", "against", "goal", "measured", "spread", "ms")
    for row in result["rows"]:
        shown.add_row(*cells(row, row["ratio"], ""), f"{row['milliseconds']:.2f}")
    for row in result["amounts"]:
        shown.add_row(*cells(row, row["value"], row["unit"]), "")
    console = Console()
    console.print(shown)
    for note in result["skipped"]:
        console.print(f"not measured: {note}")
    if result["memory"]:
        console.print(f"first use of a task, ms: {listed(result['first_use_ms'])}")
        console.print(f"64 tasks in the memory of one: {listed(result['memory'])}")


def cells(row: dict[str, Any], value: float, unit: str) -> list[str]:
    measured = f"[{'green' if row['met'] else 'red'}]{value:.3f}[/] {unit}".strip()
    spread = f"{row['low']:.2f}–{row['high']:.2f}"
    return [row["name"], row["against"], f"{row['goal']:.3g} {unit}".strip(), measured, spread]


def listed(facts: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in facts.items())


def table(result: dict[str, Any]) -> str:
    """The result as a table of Markdown."""
    lines = ["| what | against | goal | measured | spread |", "|---|---|---|---|---|"]
    for row in result["rows"]:
        ratio, goal = f"{row['ratio']:.2f}", f"{row['goal']:.2f}"
        if not row["met"]:
            ratio = f"{row['ratio']:.3f}" if ratio == goal else ratio
            ratio += " **missed**"
        spread = f"{row['low']:.2f}–{row['high']:.2f}"
        lines.append(f"| {row['name']} | {row['against']} | ≤ {goal} | {ratio} | {spread} |")
    share = result["memory"]["share_of_64_models"]
    lines.append(f"| memory of the MLP with 64 tasks | 64 MLPs | ≤ 1/60 | 1/{1 / share:.0f} | |")
    for row in result["amounts"]:
        value, low, high = (f"{row[name]:.3g}" for name in ("value", "low", "high"))
        measured = f"{value} {row['unit']}".strip() + ("" if row["met"] else " **missed**")
        spread = f" {low}–{high}" if low != high else ""
        goal = f"≤ {row['goal']:g} {row['unit']}".strip()
        lines.append(f"| {row['name']} | {row['against']} | {goal} | {measured} |{spread} |")
    return "\n".join(lines)


if __name__ == "__main__":
    tyro.cli(Speed, description=__doc__).run()
