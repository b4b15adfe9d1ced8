"""Where the time of mixed batches goes: choosing the tasks, and pages of fresh memory.

    python benchmarks/where.py      # writes results/speed/where.json

Each comparison runs twice, in a new process each: as it is, and with an allocator that gives no
memory back to the system, so that no page is fresh.
"""

import json
import os
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import comparisons
import timing
import torch

import superpose as sp
from superpose_lab.networks import MLP

OUT = Path(__file__).parents[1] / "results/speed/where.json"
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**30)}
ROUNDS = 20


def fresh_pages(action: comparisons.Action) -> int:
    """How many pages of memory the system had to hand out and clear during an action."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    action()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def mixed_batches() -> list[dict[str, object]]:
    found = []
    for row in comparisons.comparisons(torch.device("cpu"), ROUNDS):
        if "training" in row.name or "separate" in row.against:
            continue
        measured = timing.measure(row)
        action, baseline = row.make()
        pages = [(fresh_pages(action), fresh_pages(baseline)) for _ in range(ROUNDS)]
        mixed, plain = (median(side) for side in zip(*pages, strict=True))
        what = {"name": row.name, "against": row.against, "ratio": measured.ratio}
        found.append(what | {"fresh_pages": mixed, "fresh_pages_against": plain})
    return found


def choosing() -> dict[str, float]:
    """Microseconds of a pass of 128 rows of 64 tasks, after a plain pass and right away again."""
    plain, x, tasks = MLP(784, 1024, 10), torch.randn(128, 784), torch.arange(128) % 64
    model = sp.superpose(plain, "binary", tasks=64)

    def seconds(action: comparisons.Action) -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start

    times: dict[str, list[float]] = {"plain": [], "choose_cold": [], "choose_warm": [], "run": []}
    with torch.no_grad():
        for _ in range(5 * ROUNDS):
            times["plain"].append(seconds(lambda: plain(x)))
            times["choose_cold"].append(seconds(lambda: model.view(tasks)))
            times["choose_warm"].append(seconds(lambda: model.view(tasks)))
            selection = model.view(tasks)
            plain(x)
            times["run"].append(seconds(partial(model.run, selection, x)))
    return {name: 1e6 * median(each) for name, each in times.items()}


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        torch.set_num_threads(1)
        print(json.dumps({"mixed_batches": mixed_batches(), "choosing": choosing()}))
    else:
        result = {}
        for name, variables in {"usual": {}, "memory_kept": KEPT}.items():
            run = [sys.executable, __file__, "measure"]
            environment = os.environ | variables
            told = subprocess.run(run, env=environment, check=True, capture_output=True).stdout
            result[name] = json.loads(told)
        OUT.write_text(json.dumps(result, indent=2) + "\n")
