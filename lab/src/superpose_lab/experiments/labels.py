"""The name of a run, and the command that makes it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from superpose_lab.experiments.settings import EXPERIMENTS, Settings, spelled

SHORT = {
    "hidden": "h",
    "stem": "stem-",
    "conv": "conv-",
    "private": "private-",
    "centre": "centre-",
    "min_inputs": "min-inputs-",
    "rank": "rank",
    "rank_lr": "rank-lr",
    "tasks": "t",
    "steps": "s",
    "period": "p",
    "contexts": "c",
    "batch_size": "b",
    "lr": "lr",
    "gain": "gain",
    "label_smoothing": "smooth",
    "strength": "strength",
    "evaluate_every": "e",
}
SPELLED = ("dataset", "optimiser", "schedule")  # nor `matrix`, which only adds tests
FLAGS = ("reset", "learnable", "tasks_found")


@dataclass(frozen=True)
class Wanted:
    """Runs that differ in their seed alone, and how many of them a figure needs."""

    settings: Settings
    seeds: int = 1
    label: str = ""

    @property
    def name(self) -> str:
        """Their name in the results of their experiment."""
        return run_name(self.settings)

    def each(self, seeds: int | None = None) -> Iterator[Settings]:
        """Settings for every seed."""
        return (replace(self.settings, seed=seed) for seed in range(seeds or self.seeds))


def run_name(settings: Settings) -> str:
    """Method, size, and the settings that are not as in the paper.

    >>> run_name(Settings(experiment="permuting-mnist", units=512, tasks=10, schedule="cosine"))
    'binary-u512-t10-cosine'
    """
    experiment = EXPERIMENTS[settings.experiment]
    given, paper = experiment.complete(settings), experiment.complete(_papers(settings))
    size = f"w{given.width}" if settings.experiment == "icifar" else f"u{given.units}"
    parts = [settings.method, size]
    for name in (*SHORT, *SPELLED):
        value = getattr(given, name)
        if value != getattr(paper, name):
            parts.append(f"{SHORT.get(name, '')}{value}")
    return "-".join([*parts, *(name for name in FLAGS if getattr(given, name))])


def command(settings: Settings) -> str:
    """The command that makes this one run.

    >>> command(Settings(experiment="icifar", width=16, seed=2))
    'superpose-lab run icifar --width 16 --seed 2'
    """
    complete = EXPERIMENTS[settings.experiment].complete
    given: dict[str, Any] = asdict(complete(settings))
    for name in ("experiment", "data_dir"):
        del given[name]
    words = ["superpose-lab", "run", settings.experiment]
    return spelled(words, given, asdict(complete(_papers(settings))))


def _papers(settings: Settings) -> Settings:
    return Settings(experiment=settings.experiment)
