"""Fine-tune after fine-tune of pretrained networks: superposition beside its rivals.

    python benchmarks/pretrained.py tune --net mlp --method lora --rank 2
    python benchmarks/pretrained.py run --net mlp --method lora --rank 2 --tasks 40 --seed 0
    python benchmarks/pretrained.py run --net mlp --method superposed --rank 2 --centre task \
        --projection --tasks 40 --lr 1e-3
    python benchmarks/pretrained.py figure    # from results/fine-tunes.jsonl

A run that was killed goes on when its command is given again. Without --lr, a run takes the
best learning rate of `tune` for its network and method. Runs lie in runs/fine-tunes.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro
from tyro.conf import OmitArgPrefixes, arg

from superpose import SuperposeError
from superpose_lab.collect import RATES, collect
from superpose_lab.experiments.fine_tunes import GRID, FineTunes, run, tune
from superpose_lab.results import Results

ROOT = Path(__file__).parents[1]
RESULTS, RUNS = ROOT / "results", ROOT / "runs" / "fine-tunes"


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
        folder = RUNS / settings.problem_label / f"{settings.tasks}-tasks"
        other = "" if self.settings.lr is None else f"-lr{settings.lr:g}"
        place = folder / (settings.label + other) / f"seed-{settings.seed}"
        outcome = run(settings, self.out or place)
        collect([self.out or place], Results(RESULTS))
        names = ("mean_when_learned", "mean_all", "first_task")
        measured = {name: outcome.result[name] for name in names}
        print(settings.net, settings.label, settings.tasks, measured, outcome.timings)


@dataclass(frozen=True)
class Tune:
    """Try learning rates on other tasks, tested on validation rows."""

    settings: OmitArgPrefixes[FineTunes]
    grid: Annotated[tuple[float, ...], arg(help="Learning rates.")] = GRID

    def __call__(self) -> None:
        file = tuning_file(self.settings)
        tried = tune(with_rank_lr(self.settings), file, self.grid)
        collect([file.parent], Results(RESULTS))
        print(self.settings.net, self.settings.label, tried["mean_all"], "best", tried["lr"])


@dataclass(frozen=True)
class Figure:
    """Draw accuracy against tasks at equal bytes."""

    def __call__(self) -> None:
        from superpose_lab.figures.fine_tunes import draw

        draw(RESULTS)


def tuning_file(settings: FineTunes) -> Path:
    return RUNS / settings.problem_label / "tuning" / f"{settings.label}.json"


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
    """The best learning rate that was tried for the method, at the nearest rank."""
    lines = Results(RESULTS).lines(RATES)
    of_problem = [line for line in lines if line["name"].startswith(f"{settings.problem_label}/")]
    tried = [(FineTunes(**line["about"]), line["lr"]) for line in of_problem]
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
