"""The lab stands on the public names of the library alone."""

import ast
import importlib
from pathlib import Path

import pytest

import superpose

SOURCE = Path(__file__).parents[1] / "src" / "superpose_lab"


def imported(path):
    """Modules of superpose, and the names that are imported from each."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_a_file_imports_exported_names_of_packages_alone(path):
    for module, name in imported(path):
        if module.partition(".")[0] != "superpose":
            continue
        package = importlib.import_module(module)
        assert hasattr(package, "__path__"), f"{module} is a file inside a package"
        assert name in package.__all__, f"{module} does not export {name}"


def test_the_library_does_not_import_the_lab():
    library = Path(superpose.__file__).parent
    paths = list(library.rglob("*.py"))
    assert len(paths) > 50
    assert [
        path.name
        for path in paths
        for module, _ in imported(path)
        if module.partition(".")[0] == "superpose_lab"
    ] == []


def test_no_file_is_longer_than_400_lines():
    long = [path.name for path in SOURCE.rglob("*.py") if len(path.read_text().splitlines()) > 400]
    assert long == []
