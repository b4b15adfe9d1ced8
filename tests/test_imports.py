"""`import superpose` brings torch, numpy and safetensors, and no other package."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "superpose"

LOOK = """
import sys
import numpy, safetensors.torch, torch
before = set(sys.modules)
import superpose
packages = {name.partition(".")[0] for name in set(sys.modules) - before}
known = {name.partition(".")[0] for name in before}
print(*sorted(packages - known - sys.stdlib_module_names - {"superpose"}))
above = ("superpose.serving", "superpose.lab", "superpose.cli")
print(*sorted(name for name in sys.modules if name.startswith(above)))
print("superpose.learning" in sys.modules)
superpose.lab.MLP, superpose.learning.train
"""


def test_importing_the_library_imports_three_packages():
    told = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    extra, apart, learning = told.stdout.splitlines()
    assert extra == "", "packages that are not torch, numpy or safetensors"
    assert apart == "", "serving, the lab and the command line are imported when asked for"
    assert learning == "False"


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("part", ["serving", "lab", "cli"])
def test_nothing_in_the_library_imports_what_stands_on_it(part):
    library = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != part]
    above = {"cli", "__main__.py", "__init__.py"}  # may import the lab; __init__ does so for types
    below = [path for path in library if path.relative_to(SOURCE).parts[0] not in above]
    assert len(below) > 50
    found = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in below
        for name in imported(path)
        if f"{name}.".startswith(f"superpose.{part}.")
    ]
    assert found == []
