"""Write the tables of README.md and docs/ anew from the files in results/.

    python benchmarks/tables.py            # writes them
    python benchmarks/tables.py --check    # exits with 1 if one is out of step

A table stands between `<!-- NAME: … -->` and `<!-- end -->`; NAME is a function below.
"""

import json
import re
import sys
from pathlib import Path
from statistics import fmean, stdev

from superpose.experiments import bench

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "speed.md"]
FAMILIES = ["hadamard", "rotation", "phase", "complex", "onepower", "binary", "standard"]


def speed() -> str:
    return bench.table(json.loads((ROOT / "results/speed/bench.json").read_text()))


def first_use() -> str:
    found = json.loads((ROOT / "results/speed/bench.json").read_text())["first_use_ms"]
    lines = ["| family | ms |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {ms:.2f} |" for name, ms in found.items())])


def families() -> str:
    """Permuting MNIST, 50 tasks, 256 units: the paper's setting."""
    runs = ROOT / "results/runs/permuting-mnist"
    lines = [
        "| method | first task | mean of last ten | mean of all 50 | seeds |",
        "|---|---|---|---|---|",
    ]
    for method in FAMILIES:
        paths = sorted(runs.glob(f"{method}-u256/seed-*/result.json"))
        results = [json.loads(path.read_text()) for path in paths]
        if results:
            names = ("first_task", "mean_last_ten", "mean_all")
            cells = [told([100 * result[name] for result in results]) for name in names]
            lines.append(f"| `{method}` | {' | '.join(cells)} | {len(results)} |")
    return "\n".join(lines)


def told(values: list[float]) -> str:
    deviation = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{deviation}"


TABLES = {"speed": speed, "first use": first_use, "families": families}


def renewed(text: str) -> str:
    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n{TABLES[match[2]]()}\n<!-- end -->"

    return re.sub(r"(<!-- ([a-z ]+): .*? -->)\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def main() -> None:
    late = []
    for path in DOCUMENTS:
        before = path.read_text()
        after = renewed(before)
        if after != before:
            late.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(after)
    if "--check" in sys.argv and late:
        sys.exit(f"out of step with results/: {', '.join(late)}; run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
