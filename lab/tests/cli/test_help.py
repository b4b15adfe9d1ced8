"""Help texts: quick, complete, and with examples that parse."""

import re
import shlex
import subprocess
import sys
from typing import get_args

import pytest

from superpose_lab.cli import COMMANDS, main, parse
from superpose_lab.cli.data import DataCommand
from superpose_lab.experiments.settings import EXPERIMENTS

PARTS = [
    ("data", name)
    for each in get_args(DataCommand.__annotations__["command"].__origin__)
    for name in [each.__metadata__[0].name]
]
CALLS = [*((name,) for name in COMMANDS), *PARTS]

LOADED = """
import sys
from superpose_lab.cli import main
for call in sys.argv[1:]:
    try:
        main([*call.split(), "--help"])
    except SystemExit:
        pass
print(*sorted({"torch", "numpy", "safetensors", "matplotlib"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture
def helped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def text(*call):
        with pytest.raises(SystemExit) as ended:
            main([*call, "--help"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return text


def test_help_does_not_wait_for_pytorch():
    calls = [" ".join(call) for call in [(), *CALLS]]
    run = subprocess.run([sys.executable, "-c", LOADED, *calls], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "\n")
    for call in calls:
        assert " ".join(f"usage: superpose-lab {call}".split()) in run.stdout


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_help_has_an_example_that_parses(call, helped):
    text = helped(*call)
    example = re.search(r"^Example: (.*?)\n\n", text, re.M | re.S)[1].replace("\\\n", " ")
    words = shlex.split(example)
    assert tuple(words[: len(call) + 1]) == ("superpose-lab", *call)
    parse(words[1:])


@pytest.mark.parametrize("call", [(), *CALLS], ids=" ".join)
def test_help_fits_eighty_columns_and_says_every_default_in_words(call, helped):
    text = helped(*call)
    options = text[text.index(" options ") :].splitlines()
    assert len(options) > 2
    assert max(map(len, options)) <= 80
    for word in ("default: None", "default: False", "default: )"):
        assert word not in " ".join(text.split())


@pytest.mark.parametrize("option", ["tasks", "steps", "lr", "evaluate_every"])
def test_defaults_in_the_help_are_those_of_the_experiments(option, helped):
    text = " ".join(re.sub("[│|]", " ", helped("run")).split())
    flag = option.replace("_", "-")
    default = re.search(rf" --{flag} [A-Z]+ .*?\(default: (.*?)\)", text)[1]
    mnist, *others = default.split("; ")
    by_name = dict.fromkeys(EXPERIMENTS, mnist)
    for other in others:
        kind, value = other.split()
        by_name |= {name: value for name in EXPERIMENTS if name.startswith(kind)}
    for name, experiment in EXPERIMENTS.items():
        assert float(by_name[name]) == getattr(experiment, option), name
