"""Results as JSON lines: one file an experiment, one line a run."""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from superpose import SuperposeError
from superpose_lab.experiments.labels import run_name
from superpose_lab.experiments.settings import EXPERIMENTS, Settings
from superpose_lab.files import parsed, write

Line = dict[str, Any]
"""At least `name`, `seed` and `command`; of a run also `config` and `result`."""

NEEDED = {"first", "final", "first_task", "mean_all"}


class Results:
    """The JSON-lines files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, dict[tuple[str, int], Line]] = {}

    def lines(self, experiment: str) -> list[Line]:
        """All lines of an experiment."""
        return list(self._lines(experiment).values())

    def named(self, experiment: str, name: str) -> dict[int, Line]:
        """The lines of one name, by seed."""
        lines = (line for line in self.lines(experiment) if line["name"] == name)
        return {line["seed"]: line for line in lines}

    def one(self, experiment: str, name: str) -> Line | None:
        """The line of a name that has no seeds, if there is one."""
        return self._lines(experiment).get((name, 0))

    def add(self, experiment: str, lines: Iterable[Line]) -> None:
        """Add lines; one of the same name and seed is replaced."""
        known = self._lines(experiment)
        known |= {(line["name"], line["seed"]): line for line in lines}
        self._read[experiment] = known = dict(sorted(known.items()))
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in known.values())
        write(self._path(experiment), text.encode())

    def of(self, settings: Settings) -> dict[int, dict[str, Any]]:
        """The results of a run by seed; an error if runs of other settings have its name."""
        return {
            seed: _checked(line, replace(settings, seed=seed), self._path(settings.experiment))
            for seed, line in self.named(settings.experiment, run_name(settings)).items()
        }

    def _path(self, experiment: str) -> Path:
        return self.folder / f"{experiment}.jsonl"

    def _lines(self, experiment: str) -> dict[tuple[str, int], Line]:
        if experiment not in self._read:
            path = self._path(experiment)
            rows = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            self._read[experiment] = {}
            for number, row in enumerate(rows, start=1):
                try:
                    line = parsed(row)
                    self._read[experiment][line["name"], line["seed"]] = line
                except (ValueError, KeyError) as error:
                    del self._read[experiment]
                    raise SuperposeError(f"line {number} of {path} is damaged: {error}") from error
        return self._read[experiment]


def _checked(line: Line, settings: Settings, path: Path) -> dict[str, Any]:
    wanted = asdict(EXPERIMENTS[settings.experiment].complete(settings))
    about = {"tasks_found": False, "rank_lr": None} | line["config"].get("about", {})
    for name, was in about.items():
        if name not in ("threads", "matrix") and wanted.get(name, was) != was:
            raise SuperposeError(
                f"{line['name']} in {path} was run with {name}={was!r}, not {wanted[name]!r}: take "
                "its line out, or choose another --out"
            )
    result: dict[str, Any] = line["result"]
    if not set(result) >= NEEDED:
        raise SuperposeError(
            f"{line['name']}, seed {line['seed']}, in {path} has no "
            f"{', '.join(sorted(NEEDED - set(result)))}: take its line out, and run it again"
        )
    return result
