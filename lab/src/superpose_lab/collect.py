"""Bring run directories, and measures beside them, into the JSON lines of the results.

A line keeps all that a page or a figure reads. It leaves out the intermediate accuracies of tasks
other than the first, which are in `metrics.jsonl` of the run, and long printouts of networks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from superpose import SuperposeError
from superpose_lab.experiments.fine_tunes import FineTunes
from superpose_lab.experiments.labels import command, run_name
from superpose_lab.experiments.recognition.protocol import without_defaults
from superpose_lab.experiments.settings import EXPERIMENTS, Settings, spelled
from superpose_lab.files import parsed, read_json
from superpose_lab.results import Line, Results

RECOGNITION, RECOGNITION_RUNS = "recognition", "recognition-runs"
FINE_TUNES, RATES = "fine-tunes", "fine-tunes-rates"
LONGEST = 200  # characters of a network's printout
LOSS_DIGITS, DIGITS = 4, 6


def collect(folders: Iterable[Path], results: Results) -> list[str]:
    """Bring what is below the folders into the results; the names of the new lines.

    A line that is there already stays, so the same folders can be collected again.
    """
    new: dict[str, dict[tuple[str, int], Line]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise SuperposeError(f"{folder} is not a directory: give one with run directories")
        for experiment, line in lines_below(folder):
            if line["seed"] not in results.named(experiment, line["name"]):
                new.setdefault(experiment, {}).setdefault((line["name"], line["seed"]), line)
    for experiment, lines in new.items():
        results.add(experiment, lines.values())
    return [f"{experiment}/{name}" for experiment, lines in new.items() for name, _ in lines]


def lines_below(folder: Path) -> Iterator[tuple[str, Line]]:
    """The experiment and the line of everything that is known below a folder."""
    for path in sorted(folder.rglob("*.json")):
        if path.name == "result.json" and (path.parent / "config.json").exists():
            line = line_of(path.parent)
        elif path.name not in RUN_FILES:
            line = _measures(path)
        else:
            continue
        if line is not None:
            yield line


RUN_FILES = ("config.json", "result.json", "timings.json", "storage.json", "protocol.json")


def line_of(folder: Path) -> tuple[str, Line] | None:
    """The experiment and the line of a finished run; None for a run of another experiment."""
    config = read_json(folder / "config.json")
    about = config.get("about", {})
    line: Line = {"name": "", "seed": about.get("seed", 0), "command": config.pop("command", "")}
    line["config"] = {
        name: value
        for name, value in config.items()
        if not (name == "model" and len(value) > LONGEST)
    }
    line["result"] = compact(read_json(folder / "result.json"))
    for name in ("timings", "storage", "protocol"):
        if (folder / f"{name}.json").exists():
            line[name] = compact(read_json(folder / f"{name}.json"))
    if about.get("experiment") in EXPERIMENTS:
        settings = Settings(**_known(Settings, about))
        return settings.experiment, line | {
            "name": run_name(settings),
            "command": command(settings),
        }
    if "net" in about:
        given = FineTunes(**_known(FineTunes, about))
        plain = asdict(FineTunes(net=given.net, method=given.method)) | {"net": "", "method": ""}
        made = spelled(["python", "benchmarks/pretrained.py", "run"], asdict(given), plain)
        return FINE_TUNES, line | {"name": _fine_tunes_name(folder, given), "command": made}
    if folder.parent.name in ("recognise", RECOGNITION):
        return RECOGNITION_RUNS, line | {"name": folder.name}
    return None


def _fine_tunes_name(folder: Path, given: FineTunes) -> str:
    *_, problem, tasks, label, _ = folder.absolute().parts
    if not tasks.endswith("-tasks"):  # a directory of the user's choice
        problem, tasks = given.problem_label, f"{given.tasks}-tasks"
        label = f"{given.label}-lr{given.lr:g}"
    return f"{problem}/{tasks}/{label}"


def _measures(path: Path) -> tuple[str, Line] | None:
    """Measures of recognition, or learning rates that were tried."""
    try:
        contents = parsed(path.read_text(encoding="utf-8"))
    except ValueError:  # another file
        return None
    if {"protocol", "command"} <= contents.keys():
        protocol, made = without_defaults(contents.pop("protocol")), contents.pop("command")
        line = {"name": path.stem, "seed": 0, "command": made, "protocol": protocol}
        return RECOGNITION, line | {"measures": compact(contents)}
    if {"about", "mean_all", "lr"} <= contents.keys():
        name = "/".join([path.parent.parent.name, path.stem])
        made = f"python benchmarks/pretrained.py tune --net {contents['about']['net']} …"
        return RATES, {"name": name, "seed": 0, "command": made, **contents}
    return None


def compact(result: dict[str, Any]) -> dict[str, Any]:
    """Round, and list the accuracies after each task as (task, accuracy) pairs.

    >>> compact({"matrix": [[0.0, None], [0.5, 0.1234567]]})
    {'matrix': [[[0, 0.0]], [[0, 0.5], [1, 0.123457]]]}
    """
    result = rounded(result, DIGITS)
    if "loss" in result and isinstance(result["loss"], list):
        result["loss"] = rounded(result["loss"], LOSS_DIGITS)
    if "matrix" in result:
        result["matrix"] = [
            [[task, value] for task, value in enumerate(row) if value is not None]
            for row in result["matrix"]
        ]
    return result


def rounded(value: Any, digits: int) -> Any:
    """Round all floats inside.

    >>> rounded({"a": [0.1234, 5, None]}, 2)
    {'a': [0.12, 5, None]}
    """
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, list):
        return [rounded(each, digits) for each in value]
    if isinstance(value, dict):
        return {name: rounded(each, digits) for name, each in value.items()}
    return value


def _known(kind: type[Settings] | type[FineTunes], about: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in about.items() if name in names}
