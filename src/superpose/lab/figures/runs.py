"""The runs that figures are drawn from: one directory each, shared by all figures that need it."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from superpose.errors import SuperposeError
from superpose.lab.experiments.settings import EXPERIMENTS, Settings, spelled
from superpose.learning.run_directory import locked, write

KEPT = ("config.json", "metrics.jsonl", "timings.json", "result.json")
"""What a finished run is made of; the result last, since a run that has one is finished."""

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
SPELLED = ("dataset", "optimiser", "schedule", "matrix")
FLAGS = ("reset", "learnable", "tasks_found")
NUMBER = r"(?:null|-?\d[\d.eE+-]*)"
NUMBERS = re.compile(rf"\[\s+(?:{NUMBER},\s+)*{NUMBER}\s+\]")


@dataclass(frozen=True)
class Wanted:
    """Runs that differ in their seed alone, and how many of them a figure needs."""

    settings: Settings
    seeds: int = 1
    label: str = ""

    @property
    def folder(self) -> str:
        """Where they are, below the root of all runs."""
        return folder(self.settings)

    def each(self, seeds: int | None = None) -> list[Settings]:
        """Settings for every seed."""
        return [replace(self.settings, seed=seed) for seed in range(seeds or self.seeds)]


def folder(settings: Settings) -> str:
    """A run's place: experiment, method, size, and what is not as in the paper.

    >>> folder(Settings(experiment="permuting-mnist", units=512, tasks=10, schedule="cosine"))
    'permuting-mnist/binary-u512-t10-cosine'
    """
    experiment = EXPERIMENTS[settings.experiment]
    given, paper = experiment.complete(settings), experiment.complete(_plain(settings))
    size = f"w{given.width}" if settings.experiment == "icifar" else f"u{given.units}"
    parts = [settings.method, size]
    for name in (*SHORT, *SPELLED):
        value = getattr(given, name)
        if value != getattr(paper, name):
            parts.append(f"{SHORT.get(name, '')}{value}")
    parts += [name for name in FLAGS if getattr(given, name)]
    return f"{settings.experiment}/{'-'.join(parts)}"


def place(root: Path, settings: Settings) -> Path:
    """The directory of one run."""
    return root / folder(settings) / f"seed-{settings.seed}"


def command(settings: Settings) -> str:
    """The command that makes this one run.

    >>> command(Settings(experiment="icifar", width=16, seed=2))
    'superpose run icifar --width 16 --seed 2'
    """
    complete = EXPERIMENTS[settings.experiment].complete
    given, plain = asdict(complete(settings)), asdict(complete(_plain(settings)))
    for name in ("experiment", "data_dir"):
        del given[name]
    return spelled(["superpose", "run", settings.experiment], given, plain)


def finished(root: Path, settings: Settings) -> dict[str, Any] | None:
    """The result of a run, if it has ended; an error if another run is in its place."""
    path = place(root, settings)
    if not (path / "result.json").exists():
        return None
    wanted = asdict(EXPERIMENTS[settings.experiment].complete(settings))
    about = {"tasks_found": False, "rank_lr": None} | read(path / "config.json").get("about", {})
    for name, was in about.items():
        if name not in ("threads", "matrix") and wanted.get(name, was) != was:
            raise SuperposeError(
                f"{path} was run with {name}={was!r}, not {wanted[name]!r}: move it away, or "
                "choose another --out"
            )
    result = read(path / "result.json")
    if not {"first", "final", "first_task", "mean_all"} <= set(result):
        raise SuperposeError(
            f"{path / 'result.json'} is damaged, some numbers are missing: delete its directory to "
            "run it again"
        )
    return result


def read(path: Path) -> dict[str, Any]:
    """A JSON file, or an error that names it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SuperposeError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise SuperposeError(f"{path} is damaged: it is not a JSON object")
    return found


class Finished:
    """All finished runs below a root; any seed that is there counts, asked for or not."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def of(self, settings: Settings) -> dict[int, dict[str, Any]]:
        """Results by seed."""
        here = self.root / folder(settings)
        seeds = sorted(
            int(path.name[5:]) for path in here.glob("seed-*") if path.name[5:].isdigit()
        )
        found = {seed: finished(self.root, replace(settings, seed=seed)) for seed in seeds}
        return {seed: result for seed, result in found.items() if result is not None}

    def missing(self, wanted: Sequence[Wanted], seeds: int | None = None) -> list[Settings]:
        """The runs that have not ended, each once, the first seed of all before the second."""
        ordered: dict[Path, Settings] = {}
        for settings in sorted(
            (each for group in wanted for each in group.each(seeds)), key=lambda each: each.seed
        ):
            ordered.setdefault(place(self.root, settings), settings)
        return [each for each in ordered.values() if finished(self.root, each) is None]


def settle(path: Path) -> None:
    """Leave of a finished run what is worth keeping: no checkpoint, no lock, no one's paths."""
    config = read(path / "config.json")
    settings = _settings(config)
    if settings is None:
        raise SuperposeError(
            f"{path / 'config.json'} is damaged, it names no experiment: delete its directory to "
            "run it again"
        )
    if "command" in config and config["command"] != command(settings):
        write_json(path / "config.json", config | {"command": command(settings)})
    for name in ("checkpoint.pt", ".lock"):
        (path / name).unlink(missing_ok=True)


def adopt(source: Path, root: Path) -> list[Path]:
    """Copy the finished runs below `source` to their places; those that are there stay."""
    if not source.is_dir():
        raise SuperposeError(
            f"--adopt {source}: this is not a directory; give one that holds finished runs"
        )
    taken = []
    for found in sorted(source.rglob("result.json")):
        here = found.parent
        if not (here / "config.json").exists() or not (here / "metrics.jsonl").exists():
            continue  # such as the summary of several seeds
        settings = _settings(read(here / "config.json"))
        if settings is None:
            continue  # a run of a user's own
        target = place(root, settings)
        if (target / "result.json").exists():
            continue
        target.mkdir(parents=True, exist_ok=True)
        with locked(target):
            for name in KEPT:
                if (here / name).exists():
                    write(target / name, (here / name).read_bytes())
            settle(target)
        taken.append(target)
    return taken


def only(wanted: Iterable[Wanted], words: Sequence[str]) -> list[Wanted]:
    """Those whose folder holds one of the words; all of them without words."""
    return [each for each in wanted if has_word(each.folder, words)]


def has_word(folder: str, words: Sequence[str]) -> bool:
    """Whether a folder's name holds one of the words; yes without words."""
    return not words or any(word in folder for word in words)


def write_json(path: Path, contents: dict[str, Any]) -> None:
    """Write JSON as people read it, lists of numbers on one line."""
    text = json.dumps(contents, indent=2, ensure_ascii=False)
    text = NUMBERS.sub(lambda found: " ".join(found[0].split()), text)
    write(path, (text.replace("[ ", "[").replace(" ]", "]") + "\n").encode())


def _plain(settings: Settings) -> Settings:
    """The paper's settings for the same experiment."""
    return Settings(experiment=settings.experiment)


def _settings(config: dict[str, Any]) -> Settings | None:
    """The settings that a run's config tells of, if it is one of an experiment of ours."""
    known = {field.name for field in fields(Settings)}
    about = {name: value for name, value in config.get("about", {}).items() if name in known}
    return Settings(**about) if about.get("experiment") in EXPERIMENTS else None
