"""Commands without an extra: those that need it name it, the others work."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from superpose.extras import EXTRAS

WITHOUT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from superpose.cli import main
main(sys.argv[1:])
"""


def without(*words, extra="serve"):
    hidden = {name.partition(".")[0] for name in EXTRAS[extra]}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(hidden=hidden), *words],
        capture_output=True,
        text=True,
    )


def test_serving_names_its_extra():
    told = without("serve", "many.safetensors", "--net", "torch.nn:Linear")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == (
        "superpose: serve needs uvicorn, httptools, orjson, uvloop, prometheus-client, "
        'grpcio, protobuf (not installed): pip install "superpose[serve]"\n'
    )


def test_other_commands_do_without():
    sizes = '{"in_features": 8, "out_features": 2}'
    told = without(
        *("plan", "--net", "torch.nn:Linear", "--net-args", sizes, "--tasks", "2", "--json")
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("{")


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_are_those_of_the_extra(extra):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    wanted = [line.partition(">=")[0] for line in project["optional-dependencies"][extra]]
    assert sorted(EXTRAS[extra].values()) == sorted(set(wanted) - {"superpose[serve]"})
