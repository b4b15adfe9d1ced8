"""Results of runs that nobody ran, for figures to be drawn from."""

from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from superpose_lab.experiments.labels import command, run_name
from superpose_lab.experiments.settings import EXPERIMENTS, Settings
from superpose_lab.figures.catalogue import FIGURES
from superpose_lab.figures.figure import Learned, Recognised
from superpose_lab.results import Results

LEARNED = [name for name, figure in FIGURES.items() if isinstance(figure, Learned)]
RECOGNISED = [name for name, figure in FIGURES.items() if isinstance(figure, Recognised)]


def line(settings: Settings, start: float = 0.95, end: float = 0.8) -> dict[str, Any]:
    """The line of a run whose first task falls from `start` to `end`."""
    full = EXPERIMENTS[settings.experiment].complete(settings)
    total = full.tasks * full.steps
    steps = range(full.evaluate_every, total + 1, full.evaluate_every)
    final = [end + (start - end) * k / full.tasks for k in range(full.tasks)]
    result = {
        "method": settings.method,
        "steps": total,
        "first": [[step, start + (end - start) * step / total] for step in steps],
        "first_task": end,
        "mean_last_ten": fmean(final[-10:]),
        "mean_all": fmean(final),
        "mean_when_learned": start,
        "forgetting": fmean(start - value for value in final[:-1]) if final[1:] else 0.0,
        "final": final,
        "numbers": {"stored": 1000, "private_per_task": 10 * full.rank, "penalty": 0},
    }
    about = {name: value for name, value in asdict(full).items() if name != "data_dir"}
    return {
        "name": run_name(settings),
        "seed": settings.seed,
        "command": command(settings),
        "config": {"about": about},
        "result": result,
    }


def fake(folder: Path, settings: Settings, **heights: float) -> None:
    Results(folder).add(settings.experiment, [line(settings, **heights)])


def fake_all(name: str, folder: Path, seeds: int = 1) -> None:
    """All runs of a figure at the paper's scale, each method at its height."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for number, wanted in enumerate(FIGURES[name].wanted("paper")):
        for seed in range(seeds):
            end = 0.9 - 0.1 * number / 4 - 0.01 * seed
            made = line(replace(wanted.settings, seed=seed), end=end)
            lines.setdefault(wanted.settings.experiment, []).append(made)
    for experiment, made_lines in lines.items():
        Results(folder).add(experiment, made_lines)
