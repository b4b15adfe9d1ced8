"""Commands without an extra: those that need it name it, the others work."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from superpose.cli import COMMANDS, LAB, main
from superpose.errors import SuperposeError
from superpose.extras import EXTRAS, require

LAB_PACKAGES = EXTRAS["lab"]

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


def without(*words, extra="lab"):
    hidden = {name.partition(".")[0] for name in EXTRAS[extra]}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(hidden=hidden), *words],
        capture_output=True,
        text=True,
    )


def test_a_command_of_the_lab_names_the_extra():
    told = without("run", "permuting-mnist", "--dataset", "digits", "--tasks", "1")
    assert told.returncode == 1
    assert told.stdout == ""
    assert told.stderr == (
        "superpose: run needs matplotlib, scikit-learn, Pillow, markdown-it-py (not installed): "
        'pip install "superpose[lab]"\n'
    )


def test_serving_names_its_extra():
    told = without("serve", "many.safetensors", "--net", "torch.nn:Linear", extra="serve")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == (
        "superpose: serve needs starlette, uvicorn, httptools, orjson, uvloop, prometheus-client, "
        'grpcio, protobuf (not installed): pip install "superpose[serve]"\n'
    )


def test_other_commands_do_without():
    sizes = '{"in_features": 8, "out_features": 2}'
    told = without(
        *("plan", "--net", "torch.nn:Linear", "--net-args", sizes, "--tasks", "2", "--json")
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("{")


@pytest.mark.parametrize("missing", ["matplotlib", "sklearn", "PIL", "markdown_it"])
@pytest.mark.parametrize(
    "words",
    [
        ("demo",),
        ("run", "icifar"),
        ("reproduce", "table1"),
        ("report", "results"),
        ("data", "where"),
        ("bench",),
    ],
    ids=lambda words: words[0],
)
def test_every_package_of_the_extra_is_asked_for(words, missing, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"superpose: {words[0]} needs {LAB_PACKAGES[missing]} (not installed): "
        'pip install "superpose[lab]"\n'
    )


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_are_those_of_the_extra(extra):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    wanted = [line.partition(">=")[0] for line in project["optional-dependencies"][extra]]
    assert sorted(EXTRAS[extra].values()) == sorted(set(wanted) - {"superpose[serve]"})


def test_commands_that_import_the_lab_are_among_those_that_ask_for_it():
    for command in COMMANDS.values():
        source = Path(sys.modules[command.__module__].__file__).read_text()
        assert ("superpose.lab" in source) == (command in LAB), command


def test_a_figure_asks_for_its_own_package_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    require("a figure", "matplotlib")
    with pytest.raises(SuperposeError, match=r"digits needs scikit-learn \(not installed\)"):
        require("the data set digits", "matplotlib", "sklearn")
