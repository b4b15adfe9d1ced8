"""The best strength and learning rate of EWC and SI, by a search on short runs.

    OMP_NUM_THREADS=1 python benchmarks/tuning.py zenke-si --runs runs/tuning --out results/tuning

A search begins at a line of SEARCHES and walks along one axis after the other of the grid 1, 3, 10,
…, as long as the score rises; it ends where both neighbours on every axis are worse. So the best is
not at an edge, unless the score still rises a thousandfold away from where it began; `inside` is
false then. The short runs have a quarter of the steps and seed 1; the run that counts is seed 0 in
full length, with other permutations and weights. All are tested on the test images, as in the
papers. The same command resumes a search that was stopped.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from superpose.learning import Quiet
from superpose_lab.experiments.jobs import Job, run
from superpose_lab.experiments.labels import command, run_name
from superpose_lab.experiments.settings import Settings
from superpose_lab.figures.causes import ZENKE
from superpose_lab.files import write_json

Point = Mapping[str, float]
MEASURES = ("mean_all", "mean_last_ten", "mean_when_learned", "first_task", "last_task")
FAR = 1000  # times the value that a search begins with
FIFTY = Settings(experiment="permuting-mnist", units=2000)
"""The paper's table."""


@dataclass(frozen=True)
class Search:
    """Settings of the run in full length, the point where the search begins, and its score."""

    settings: Settings
    begin: Point
    score: str


def _zenke(method: str, strength: float) -> Search:
    return Search(replace(FIFTY, method=method, **ZENKE), {"strength": strength}, "mean_all")


def _fifty(method: str, **begin: float) -> Search:
    return Search(replace(FIFTY, method=method), begin | {"lr": 1e-4}, "mean_last_ten")


SEARCHES = {
    "zenke-si": _zenke("si", 0.1),  # the authors' own
    "zenke-ewc": _zenke("ewc", 100),
    "zenke-ewc-online": _zenke("ewc-online", 100),
    "fifty-si": _fifty("si", strength=1),
    "fifty-ewc": _fifty("ewc", strength=0.1),
    "fifty-ewc-online": _fifty("ewc-online", strength=10),
    "fifty-binary": _fifty("binary"),
    "fifty-standard": _fifty("standard"),
}


@dataclass
class Tuning:
    name: tyro.conf.Positional[str]
    runs: Path
    out: Path
    data_dir: Path | None = None

    def run(self) -> None:
        wanted = SEARCHES[self.name]
        full = wanted.settings
        steps = (full.steps or 1000) // 4
        short = replace(full, steps=steps, seed=1)
        if full.evaluate_every is not None:
            short = replace(short, evaluate_every=steps)
        found: dict[str, Any] = {
            "command": f"python benchmarks/tuning.py {self.name} --runs runs --out results/tuning",
            "score": wanted.score,
            "short": command(short),
            "tried": [],
        }

        def score(point: Point) -> float:
            result = self.result(replace(short, **point))
            found["tried"].append({**point, **{name: result[name] for name in MEASURES}})
            self.write(found)
            return float(result[wanted.score])

        best = climb(wanted.begin, score)
        inside = all(near(best[axis], wanted.begin[axis]) for axis in best)
        found |= {"best": dict(best), "inside": inside}
        self.write(found)
        last = replace(full, **best)
        result = self.result(last)
        measures = {name: result[name] for name in MEASURES}
        self.write(found | {"full": {"command": command(last), **measures}})

    def result(self, settings: Settings) -> dict[str, Any]:
        place = self.runs / settings.experiment / run_name(settings) / f"seed-{settings.seed}"
        options = {"resume": True, "save_every": 300.0}
        job = Job(replace(settings, data_dir=self.data_dir), place, self.name, options)
        return run(job, Quiet()).result

    def write(self, found: dict[str, Any]) -> None:
        write_json(self.out / f"{self.name}.json", found)
        print(json.dumps(found["tried"][-1]), flush=True)


def climb(begin: Point, score: Callable[[Point], float]) -> Point:
    """Walk to a point of the grid whose neighbours are all worse; each point is scored once."""
    known: dict[tuple[float, ...], float] = {}

    def at(point: Point) -> float:
        place = tuple(point.values())
        if place not in known:
            known[place] = score(point)
        return known[place]

    best, before = begin, None
    while best != before:
        before = best
        for axis in begin:
            for up in (True, False):
                while near(best[axis], begin[axis]):
                    further = {**best, axis: neighbour(best[axis], up)}
                    if at(further) <= at(best):
                        break
                    best = further
    return best


def near(value: float, begin: float) -> bool:
    """Check that a value is less than a thousandfold from where its search began."""
    return 1 / FAR < value / begin < FAR


def neighbour(value: float, up: bool) -> float:
    """The next of 1, 3, 10, 30, …: neighbour(3, True) is 10, neighbour(3, False) is 1."""
    power = math.floor(math.log10(value) + 1e-9)
    three = value / 10**power > 2
    power, three = (power + (three and up) - (not three and not up), not three)
    return float(f"{3 if three else 1}e{power}")


if __name__ == "__main__":
    tyro.cli(Tuning, description=__doc__).run()
