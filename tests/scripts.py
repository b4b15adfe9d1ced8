"""The scripts of benchmarks/ and others, as modules."""

import importlib
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def loaded(name):
    """A script of benchmarks/, which may import others; the folder is on the path meanwhile."""
    folder = str(ROOT / "benchmarks")
    sys.path.insert(0, folder)  # not for good: its serving.py has the name of a folder of tests
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def module_at(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
