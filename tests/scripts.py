"""The scripts of benchmarks/ and others, as modules."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def loaded(name):
    return module_at(ROOT / "benchmarks" / f"{name}.py")


def module_at(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
