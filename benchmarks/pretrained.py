"""Fine-tune after fine-tune of pretrained networks: superposition beside its rivals.

    python benchmarks/pretrained.py tune --net mlp --method lora --rank 2
    python benchmarks/pretrained.py run --net mlp --method lora --rank 2 --tasks 40 --seed 0
    python benchmarks/pretrained.py run --net mlp --method superposed --rank 2 --centre task \
        --projection --tasks 40 --lr 1e-3
    python benchmarks/pretrained.py figure    # from the files in results/pretrained

A run that was killed goes on when its command is given again. Without --lr, a run takes the
learning rate that `tune` found for its network and method.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro
from tyro.conf import OmitArgPrefixes, arg

from superpose.errors import SuperposeError
from superpose.lab.experiments.pretrained import GRID, FineTunes, run, tune

RESULTS = Path(__file__).parents[1] / "results" / "pretrained"


@dataclass(frozen=True)
class Run:
    """Learn all tasks by one method."""

    settings: OmitArgPrefixes[FineTunes]
    out: Path | None = None
    """The directory of the run."""

    def __call__(self) -> None:
        settings = with_rank_lr(self.settings)
        if settings.lr is None:
            settings = replace(settings, lr=tuned(settings))
        folder = RESULTS / settings.problem_label / f"{settings.tasks}-tasks"
        other = "" if self.settings.lr is None else f"-lr{settings.lr:g}"
        place = folder / (settings.label + other) / f"seed-{settings.seed}"
        outcome = run(settings, self.out or place)
        found = outcome.result
        told = {name: found[name] for name in ("mean_when_learned", "mean_all", "first_task")}
        print(settings.net, settings.label, settings.tasks, told, outcome.timings)


@dataclass(frozen=True)
class Tune:
    """Try learning rates on other tasks, tested on validation rows."""

    settings: OmitArgPrefixes[FineTunes]
    grid: Annotated[tuple[float, ...], arg(help="Learning rates.")] = GRID

    def __call__(self) -> None:
        found = tune(with_rank_lr(self.settings), tuning_file(self.settings), self.grid)
        print(self.settings.net, self.settings.label, found["mean_all"], "best", found["lr"])


@dataclass(frozen=True)
class Figure:
    """Draw accuracy against tasks at equal bytes, and write the table."""

    def __call__(self) -> None:
        from superpose.lab.figures.pretrained import draw

        draw(RESULTS)


def tuning_file(settings: FineTunes) -> Path:
    return RESULTS / settings.problem_label / "tuning" / f"{settings.label}.json"


def with_rank_lr(settings: FineTunes) -> FineTunes:
    """A low-rank part beside superposed weights learns as fast as LoRA of its rank does."""
    if settings.method != "superposed" or not settings.rank or settings.rank_lr is not None:
        return settings
    return replace(
        settings,
        rank_lr=tuned(
            FineTunes(
                net=settings.net,
                method="lora",
                rank=settings.rank,
                group=settings.group,
                steps=settings.steps,
            )
        ),
    )


def tuned(settings: FineTunes) -> float:
    """The learning rate that was found for the method, with the nearest rank that was tried."""
    files = tuning_file(settings).parent.glob("*.json")
    found = [json.loads(path.read_text()) for path in sorted(files)]
    tried = [(FineTunes(**one["about"]), one["lr"]) for one in found]
    alike = [
        (abs(other.rank - settings.rank), lr)
        for other, lr in tried
        if replace(other, rank=settings.rank).label == settings.label
    ]
    if not alike:
        raise SuperposeError(f"{settings.label} was not tuned: give --lr, or find one with tune")
    return float(min(alike)[1])


def main() -> None:
    torch.set_num_threads(1)
    tyro.extras.subcommand_cli_from_dict({"run": Run, "tune": Tune, "figure": Figure})()


if __name__ == "__main__":
    main()
