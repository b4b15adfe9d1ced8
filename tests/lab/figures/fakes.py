"""Finished runs that nobody ran, for figures to be drawn from."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from superpose.lab.experiments.settings import EXPERIMENTS, Settings
from superpose.lab.figures.item import Learned, Recognised
from superpose.lab.figures.items import ITEMS
from superpose.lab.figures.runs import place

LEARNED = [name for name, item in ITEMS.items() if isinstance(item, Learned)]
RECOGNISED = [name for name, item in ITEMS.items() if isinstance(item, Recognised)]


def fake(root: Path, settings: Settings, start: float = 0.95, end: float = 0.8) -> dict[str, Any]:
    """A finished run whose first task falls from `start` to `end`."""
    full = EXPERIMENTS[settings.experiment].complete(settings)
    total = full.tasks * full.steps
    steps = range(full.evaluate_every, total + 1, full.evaluate_every)
    first = [[step, start + (end - start) * step / total] for step in steps]
    final = [end + (start - end) * k / full.tasks for k in range(full.tasks)]
    result = {
        "method": settings.method,
        "steps": total,
        "first": first,
        "first_task": end,
        "mean_last_ten": fmean(final[-10:]),
        "mean_all": fmean(final),
        "mean_when_learned": start,
        "final": final,
        "numbers": {"stored": 1000, "private_per_task": 10 * full.rank, "penalty": 0},
    }
    path = place(root, settings)
    path.mkdir(parents=True)
    about = {name: value for name, value in asdict(full).items() if name != "data_dir"}
    (path / "config.json").write_text(json.dumps({"about": about}))
    (path / "metrics.jsonl").write_text("")
    (path / "result.json").write_text(json.dumps(result))
    return result


def fake_all(name: str, out: Path, seeds: int = 1) -> None:
    """Finished runs for all that a name needs at the paper's scale, each method at its height."""
    for number, wanted in enumerate(ITEMS[name].wanted("paper")):
        for seed in range(seeds):
            end = 0.9 - 0.1 * number / 4 - 0.01 * seed
            fake(out / "runs", replace(wanted.settings, seed=seed), end=end)
