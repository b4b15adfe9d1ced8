"""Run what is missing, put the numbers together, draw."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from superpose.errors import SuperposeError
from superpose.lab.experiments.jobs import Job, side_by_side
from superpose.lab.experiments.recognition.protocol import RecognitionProtocol
from superpose.lab.experiments.settings import Settings
from superpose.lab.figures import Scale, measured, runs
from superpose.lab.figures.findings import Findings
from superpose.lab.figures.items import ITEMS
from superpose.lab.figures.measured import FOLDER, Measured, Measuring
from superpose.lab.figures.runs import Finished
from superpose.lab.figures.style import drawing_library, save, style
from superpose.learning import Display


def runs_root(out: Path, scale: Scale) -> Path:
    """Where runs of a scale are: those of the paper's scale by themselves."""
    return out / "runs" if scale == "paper" else out / scale / "runs"


def train_missing(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    *,
    seeds: int | None = None,
    at_once: int = 1,
    only: Sequence[str] = (),
    data_dir: Path | None = None,
    display: Callable[[Sequence[str]], Display],
) -> int:
    """Run, or go on with, the runs that these names lack; how many those were.

    The error of one is raised when the others have ended.
    """
    root = runs_root(out, scale)
    wanted = [each for name in names for each in ITEMS[name].wanted(scale)]
    chosen = runs.only(wanted, only)
    protocols = protocols_of(names, scale)
    recognised = {n: p for n, p in protocols.items() if runs.has_word(f"{FOLDER}/{n}", only)}
    if (wanted or protocols) and not (chosen or recognised):
        folders = [each.folder for each in wanted] + [f"{FOLDER}/{name}" for name in protocols]
        raise SuperposeError(
            f"--only {' '.join(only)}: no run has this in its name; there are "
            f"{', '.join(dict.fromkeys(folders))}"
        )
    for settings in (each for group in chosen for each in group.each(seeds)):
        _settle(runs.place(root, settings))  # if it ended when nobody could tidy up
    missing = Finished(root).missing(chosen, seeds)
    jobs: list[Job | Measuring] = [
        _job(root, replace(settings, data_dir=data_dir)) for settings in missing
    ]
    for name in Measured(root).missing(recognised):
        own = next(item for item in names if name in ITEMS[item].protocols(scale))
        jobs.append(Measuring(name, recognised[name], root, command(own, scale), data_dir))
    if not jobs:
        return 0
    drawing_library()
    labels = ([job.label] if isinstance(job, Job) else job.runs for job in jobs)
    shown = display([label for several in labels for label in several])
    if at_once > 1 and len(jobs) > 1:
        try:
            side_by_side(jobs, at_once, shown, keep_going=True)
        finally:
            for job in jobs:
                _end(job)
        return len(jobs)
    errors = []
    with shown:
        for job in jobs:
            try:
                job.run(_Inside(shown))
            except SuperposeError as error:
                errors.append(error)
            _end(job)
    if errors:
        raise errors[0]
    return len(jobs)


def protocols_of(names: Sequence[str], scale: Scale) -> dict[str, RecognitionProtocol]:
    """The protocols of recognition that these names show, each once."""
    return {n: p for name in names for n, p in ITEMS[name].protocols(scale).items()}


def command(name: str, scale: Scale) -> str:
    """The command that makes a figure or table."""
    return f"superpose reproduce {name} --scale {scale}"


def adopt(source: Path, names: Sequence[str], scale: Scale, out: Path) -> list[Path]:
    """Copy finished runs below `source` to their places: of experiments, and of these names."""
    root = runs_root(out, scale)
    taken = runs.adopt(source, root)
    return taken + list(measured.adopt(source, root, protocols_of(names, scale)))


def make(
    name: str, scale: Scale, out: Path, data_dir: Path | None = None, compute: bool = True
) -> Findings:
    """Write `<out>/<scale>/<name>.json`, and the pictures if there is anything to show.

    Without `compute`, what needs no runs is drawn from the JSON that is there.
    """
    item, data = ITEMS[name], Finished(runs_root(out, scale))
    wanted = item.wanted(scale)
    protocols = item.protocols(scale)
    missing = [runs.place(Path(), settings).as_posix() for settings in data.missing(wanted)]
    missing += [f"{FOLDER}/{name}" for name in Measured(data.root).missing(protocols)]
    stem = out / scale / name
    stem.parent.mkdir(parents=True, exist_ok=True)
    known = stem.with_suffix(".json")
    there = not compute and not wanted and not protocols and known.exists()
    numbers = runs.read(known) if there else item.table(scale, data, data_dir)
    found: Findings = {
        **numbers,
        "name": name,
        "source": item.source,
        "title": item.title,
        "scale": scale,
        "command": command(name, scale),
        "missing": missing,
    }
    if item.shows(found):
        with style():
            save(item.draw(found), stem)
    runs.write_json(known, found)
    return found


def _job(root: Path, settings: Settings) -> Job:
    label = f"{runs.folder(settings).split('/', 1)[-1]} seed {settings.seed}"
    return Job(settings, runs.place(root, settings), label, {"resume": True})


def _end(job: Job | Measuring) -> None:
    if isinstance(job, Job):
        _settle(job.out)


def _settle(path: Path | None) -> None:
    if path is not None and (path / "result.json").exists():
        runs.settle(path)


class _Inside:
    """A display that is open already, for one of several runs."""

    def __init__(self, shown: Display) -> None:
        self._shown = shown

    def __enter__(self) -> "_Inside":
        return self

    def __exit__(self, *error: object) -> None: ...

    def show(self, progress: Any) -> None:
        """Pass it on."""
        self._shown.show(progress)
