"""The library needs torch, numpy and safetensors, and `import superpose` waits for none of them."""

import ast
import importlib
import inspect
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
for name in set(superpose.__all__) - {"learning", "serving"}:
    getattr(superpose, name)
packages = {name.partition(".")[0] for name in set(sys.modules) - before}
known = {name.partition(".")[0] for name in before}
print(*sorted(packages - known - sys.stdlib_module_names - {"superpose"}))
above = ("superpose.serving", "superpose.cli")
print(*sorted(name for name in sys.modules if name.startswith(above)))
print("superpose.learning" in sys.modules)
superpose.learning.train
"""


def test_importing_the_library_imports_three_packages():
    told = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    extra, apart, learning = told.stdout.splitlines()
    assert extra == "", "packages that are not torch, numpy or safetensors"
    assert apart == "", "serving and the command line are imported when asked for"
    assert learning == "False"


QUICK = """
import sys
import superpose as sp
print(*sorted({"torch", "numpy", "safetensors"} & set(sys.modules)))
assert set(sp.__all__) <= set(dir(sp))
from superpose.tensor_file import read
from superpose import *
assert superpose is sp.superpose and pack is sp.pack and callable(pack)
assert sp.nn.Linear is nn.Linear
import pickle
assert pickle.loads(pickle.dumps(superpose)) is superpose
sp.nothing
"""


def test_names_are_imported_on_first_use():
    told = subprocess.run([sys.executable, "-c", QUICK], capture_output=True, text=True)
    assert told.stdout == "\n", "import superpose waits for torch, numpy or safetensors"
    assert told.stderr.endswith(
        "AttributeError: module 'superpose' has no attribute 'nothing'\n"
    ), told.stderr


def test_a_type_checker_sees_the_names_that_are_imported_on_first_use():
    package = "superpose"
    here = SOURCE.parent / package.replace(".", "/") / "__init__.py"
    typed = {}
    for node in ast.walk(ast.parse(here.read_text())):
        if isinstance(node, ast.ImportFrom):
            typed |= {alias.name: node.module for alias in node.names}
    names = importlib.import_module(package).__all__
    for name in names:
        module, found = typed[name], getattr(importlib.import_module(package), name)
        homes = importlib.import_module(module)
        assert found is getattr(homes, name), f"{name} is not that of {module}"


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("part", ["serving", "cli"])
def test_nothing_in_the_library_imports_what_stands_on_it(part):
    library = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != part]
    above = {"cli", "__main__.py", "__init__.py"}  # __init__ imports serving for types
    below = [path for path in library if path.relative_to(SOURCE).parts[0] not in above]
    assert len(below) > 50
    found = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in below
        for name in imported(path)
        if f"{name}.".startswith(f"superpose.{part}.")
    ]
    assert found == []


PACKAGES = ("nn", "model", "contexts", "packing", "recognition", "analysis", "learning", "serving")


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_have_docstrings(package):
    module = importlib.import_module(f"superpose.{package}")
    public = [getattr(module, name) for name in module.__all__]
    without = [one.__name__ for one in public if callable(one) and not inspect.getdoc(one)]
    assert without == []


DOORS = ("packing", "recognition", "analysis", "learning", "serving", "cli")


@pytest.mark.parametrize("package", DOORS)
def test_what_stands_on_the_core_uses_the_names_that_it_exports(package):
    reached = []
    for path in (SOURCE / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            room = node.module.split(".")[:2]
            if room not in (["superpose", "nn"], ["superpose", "model"]):
                continue
            exported = importlib.import_module(".".join(room)).__all__
            inside = len(node.module.split(".")) > 2
            reached += [
                f"{path.name}: {node.module}.{alias.name}"
                for alias in node.names
                if inside or alias.name not in exported
            ]
    assert reached == []
