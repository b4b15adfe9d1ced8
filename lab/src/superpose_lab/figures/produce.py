"""Train the runs that figures lack, bring them into the results, and draw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from superpose import SuperposeError
from superpose.learning import Display
from superpose_lab.collect import RECOGNITION, collect
from superpose_lab.experiments.jobs import Job, side_by_side
from superpose_lab.experiments.labels import Wanted, run_name
from superpose_lab.experiments.recognition.protocol import (
    Learner,
    RecognitionProtocol,
    without_defaults,
)
from superpose_lab.experiments.settings import Settings
from superpose_lab.figures import Scale
from superpose_lab.figures.catalogue import FIGURES
from superpose_lab.figures.figure import COMPUTED, Computed, computed_line
from superpose_lab.figures.recognised import measures_of
from superpose_lab.figures.style import save, style
from superpose_lab.figures.table import Table
from superpose_lab.files import read_json, write_json
from superpose_lab.results import Results


@dataclass(frozen=True)
class Place:
    """The folders of a scale: results, pictures, run directories."""

    scale: Scale
    out: Path
    runs: Path

    @property
    def folder(self) -> Path:
        """The results; those of the paper's scale are not in a folder of their own."""
        return self.out if self.scale == "paper" else self.out / self.scale

    @property
    def run_directories(self) -> Path:
        return self.runs / self.scale

    def directory(self, settings: Settings) -> Path:
        """The directory of one run."""
        name = f"{settings.experiment}/{run_name(settings)}"
        return self.run_directories / name / f"seed-{settings.seed}"

    def picture(self, name: str) -> Path:
        return self.folder / "figures" / f"{name}.svg"


@dataclass(frozen=True)
class Measuring:
    """Trains the runs of a protocol of recognition, or resumes them, and measures."""

    label: str
    protocol: RecognitionProtocol
    runs: Path
    command: str
    data_dir: Path | None = None

    @property
    def names(self) -> list[str]:
        return self.protocol.runs(self.label)

    def run(self, display: Display, stop: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Train and measure; the trained models stay, so that they can be measured again."""
        torch.set_num_threads(1)
        for run in self.names:
            self._claim(self.runs / run)
        learner = Learner(self.runs, display, stop, self.data_dir)
        measures = self.protocol.measure(self.label, learner)
        made = {"command": self.command, "protocol": self.protocol.declared(), **measures}
        write_json(self.runs / f"{self.label}.json", made)
        return made

    def _claim(self, run: Path) -> None:
        """Note the declaration of a new run; refuse a run of another one.

        The run's `config.json` does not record all options of `superpose`.
        """
        path, wanted = run / "protocol.json", self.protocol.learned()
        if not (run / "config.json").exists():
            write_json(path, wanted)
        elif path.exists():
            other = _difference(without_defaults(read_json(path)), wanted)
            if other is not None:
                raise SuperposeError(
                    f"{run} was learned with {other}: move it away, or choose another --runs"
                )


def _difference(was: dict[str, Any], now: dict[str, Any]) -> str | None:
    for name in {**now, **was}:
        if was.get(name) != now.get(name):
            return f"{name}={was.get(name)!r}, not {now.get(name)!r}"
    return None


def train_missing(
    names: Sequence[str],
    place: Place,
    *,
    seeds: int | None = None,
    at_once: int = 1,
    only: Sequence[str] = (),
    data_dir: Path | None = None,
    display: Callable[[Sequence[str]], Display],
) -> int:
    """Run, or resume, the runs that these figures lack; the number of them.

    The error of one is raised when the others have ended.
    """
    wanted, protocols = _chosen(names, place.scale, only)
    _collect(wanted, place, seeds)  # runs that ended when nobody collected them
    results = Results(place.folder)
    jobs: list[Job | Measuring] = [
        Job(
            replace(settings, data_dir=data_dir),
            place.directory(settings),
            f"{run_name(settings)} seed {settings.seed}",
            {"resume": True},
        )
        for settings in _missing(wanted, results, seeds)
    ]
    for name, protocol in protocols.items():
        if measures_of(results, name, protocol) is None:
            figure = next(each for each in names if name in FIGURES[each].protocols(place.scale))
            made = command(figure, place.scale)
            runs = place.run_directories / RECOGNITION
            jobs.append(Measuring(name, protocol, runs, made, data_dir))
    if not jobs:
        return 0
    labels = [[job.label] if isinstance(job, Job) else job.names for job in jobs]
    shown = display([label for several in labels for label in several])
    try:
        side_by_side(jobs, at_once, shown, keep_going=True)
    finally:
        _collect(wanted, place, seeds)
    return len(jobs)


def _chosen(
    names: Sequence[str], scale: Scale, only: Sequence[str]
) -> tuple[list[Wanted], dict[str, RecognitionProtocol]]:
    """The runs and protocols whose names have one of the words; all of them without words."""

    def has_word(name: str) -> bool:
        return not only or any(word in name for word in only)

    wanted = [each for name in names for each in FIGURES[name].wanted(scale)]
    protocols = {n: p for name in names for n, p in FIGURES[name].protocols(scale).items()}
    paths = [f"{each.settings.experiment}/{each.name}" for each in wanted]
    chosen = [each for path, each in zip(paths, wanted, strict=True) if has_word(path)]
    measured = {n: p for n, p in protocols.items() if has_word(f"{RECOGNITION}/{n}")}
    if (wanted or protocols) and not (chosen or measured):
        every = dict.fromkeys([*paths, *(f"{RECOGNITION}/{name}" for name in protocols)])
        raise SuperposeError(
            f"--only {' '.join(only)}: no run has this in its name; there are {', '.join(every)}"
        )
    return chosen, measured


def _missing(wanted: Sequence[Wanted], results: Results, seeds: int | None) -> list[Settings]:
    """The runs that have not ended, each once, the first seed of all before the second."""
    every = [settings for group in wanted for settings in group.each(seeds)]
    ordered = {
        (settings.experiment, run_name(settings), settings.seed): settings
        for settings in sorted(every, key=lambda each: each.seed)
    }
    return [each for each in ordered.values() if each.seed not in results.of(each)]


def _collect(wanted: Sequence[Wanted], place: Place, seeds: int | None) -> None:
    """Bring finished runs into the results; their checkpoints and locks are deleted."""
    every = (place.directory(settings) for group in wanted for settings in group.each(seeds))
    ended = [path for path in dict.fromkeys(every) if (path / "result.json").exists()]
    measured = place.run_directories / RECOGNITION
    collect([*ended, *([measured] if measured.exists() else [])], Results(place.folder))
    for path in ended:
        for name in ("checkpoint.pt", ".lock"):
            (path / name).unlink(missing_ok=True)
    for path in measured.glob("*.json"):
        path.unlink()


def command(name: str, scale: Scale) -> str:
    """The command that makes a figure or table."""
    return f"superpose-lab reproduce {name} --scale {scale}"


def make(name: str, place: Place, data_dir: Path | None = None, compute: bool = True) -> Table:
    """Draw a figure from the results; without `compute`, no computed figure is made again."""
    figure, results = FIGURES[name], Results(place.folder)
    if isinstance(figure, Computed) and compute:
        table = figure.compute(place.scale, data_dir)
        results.add(COMPUTED, [computed_line(name, command(name, place.scale), table)])
        table.heading = figure.table(name, place.scale, results).heading
    else:
        table = figure.table(name, place.scale, results)
    drawable = compute or not isinstance(figure, Computed)
    if drawable and any(row.get("seeds", 1) for row in table.rows):
        with style():
            save(figure.draw(table), place.picture(name))
    return table
