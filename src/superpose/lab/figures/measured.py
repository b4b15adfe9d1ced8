"""Measures of recognition: a file for each protocol, made by a job that trains and measures."""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from superpose.errors import SuperposeError
from superpose.lab.experiments.recognition.protocol import (
    Found,
    Learner,
    RecognitionProtocol,
    difference,
)
from superpose.lab.figures.runs import read, write_json
from superpose.learning import Display
from superpose.learning.run_directory import locked, write

FOLDER = "recognise"
"""Of measures beside the folder of all runs, and of their runs in that folder."""
ADOPTED = ("protocol.json", "metrics.jsonl", "timings.json", "checkpoint.pt", "result.json")


@dataclass(frozen=True)
class Measured:
    """The measures that belong to the runs below a root."""

    root: Path

    def file(self, name: str) -> Path:
        """Where the measures of a protocol are."""
        return self.root.parent / FOLDER / f"{name}.json"

    def of(self, name: str, protocol: RecognitionProtocol) -> Found | None:
        """The measures of a protocol, if there are any; an error if they are of another one."""
        path = self.file(name)
        if not path.exists():
            return None
        found = read(path)
        other = difference(found.get("protocol", {}), protocol.declared())
        if other is not None:
            raise SuperposeError(
                f"{path} was measured with {other}: move it and its runs in {self.root / FOLDER} "
                "away, or choose another --out"
            )
        return found

    def missing(self, protocols: Mapping[str, RecognitionProtocol]) -> list[str]:
        """The protocols that have not been measured."""
        return [name for name, protocol in protocols.items() if self.of(name, protocol) is None]


@dataclass(frozen=True)
class Measuring:
    """Trains the runs of a protocol, or goes on with them, and writes its measures."""

    label: str
    protocol: RecognitionProtocol
    root: Path
    command: str
    data_dir: Path | None = None

    @property
    def runs(self) -> list[str]:
        """What its runs are called on the screen, and their directories."""
        return self.protocol.runs(self.label)

    def run(self, display: Display, stop: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Train and measure in this process; trained models stay, so that they can be measured."""
        torch.set_num_threads(1)
        learner = Learner(self.root / FOLDER, display, stop, self.data_dir)
        for run in self.runs:
            self._claim(learner.runs / run)
        measures = self.protocol.measure(self.label, learner)
        for run in self.runs:
            config = learner.runs / run / "config.json"
            write_json(config, read(config) | {"command": self.command})
        found = {"command": self.command, "protocol": self.protocol.declared(), **measures}
        target = Measured(self.root).file(self.label)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_json(target, found)
        return found

    def _claim(self, run: Path) -> None:
        """Note what a new run learns; refuse one that learned by another declaration.

        The run's own `config.json` does not tell all options of `superpose`.
        """
        noted, wanted = run / "protocol.json", self.protocol.learned()
        if not (run / "config.json").exists():
            run.mkdir(parents=True, exist_ok=True)
            write_json(noted, wanted)
        elif noted.exists() and (other := difference(read(noted), wanted)) is not None:
            raise SuperposeError(
                f"{run} was learned with {other}: move it away, or choose another --out"
            )


def adopt(source: Path, root: Path, protocols: Mapping[str, RecognitionProtocol]) -> Iterable[Path]:
    """Copy finished runs of protocols, with their trained models, to their places.

    A run is known by the name of its directory. If it was not trained as its protocol says,
    training tells so, as it does of a run that goes on.
    """
    names = {run for name, protocol in protocols.items() for run in protocol.runs(name)}
    for found in sorted(source.rglob("checkpoint.pt")):
        here, target = found.parent, root / FOLDER / found.parent.name
        finished = (here / "result.json").exists()
        if here.name not in names or not finished or (target / "config.json").exists():
            continue
        target.mkdir(parents=True, exist_ok=True)
        with locked(target):
            for name in ADOPTED:
                if (here / name).exists():
                    shutil.copyfile(here / name, target / name)
            write(target / "config.json", (here / "config.json").read_bytes())
        yield target
