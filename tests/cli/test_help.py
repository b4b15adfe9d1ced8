"""Help texts: quick, complete, and with examples that parse."""

import re
import shlex
import subprocess
import sys
import time

import pytest

from superpose.cli import COMMANDS, main, parse

CALLS = [(name,) for name in COMMANDS]

LOADED = """
import sys
from superpose.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted({"torch", "numpy", "safetensors", "rich"} & set(sys.modules)), file=sys.stderr)
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


@pytest.mark.parametrize("call", [(), *CALLS], ids=" ".join)
def test_help_does_not_wait_for_pytorch(call):
    told = subprocess.run(
        [sys.executable, "-c", LOADED, *call, "--help"], capture_output=True, text=True
    )
    assert (told.returncode, told.stderr) == (0, "\n")
    assert told.stdout.startswith(" ".join(["usage: superpose", *call]))


def test_the_version_does_not_wait_for_pytorch_either():
    told = subprocess.run(
        [sys.executable, "-c", LOADED, "--version"], capture_output=True, text=True
    )
    assert (told.returncode, told.stderr) == (0, "\n")
    assert re.fullmatch(r"superpose \d+\.\d+\.\d+\n", told.stdout)


def test_the_time_of_help_is_recorded(record_property):
    def seconds(*words):
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        return time.perf_counter() - start

    pairs = [
        (seconds("-m", "superpose", "--help"), seconds("-c", "pass"), seconds("-c", "import torch"))
        for _ in range(3)
    ]
    told, alone, torch = map(min, zip(*pairs, strict=True))
    record_property("superpose --help, of python -c pass", round(told / alone, 1))
    assert told < torch


def test_a_reader_who_has_seen_enough_gets_no_traceback():
    command = [sys.executable, "-m", "superpose", "--help"]
    told = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    told.stdout.close()
    assert (told.stderr.read(), told.wait()) == ("", 141)
    told.stderr.close()


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_help_has_an_example_that_parses(call, helped):
    text = helped(*call)
    example = re.search(r"^Example: (.*?)\n\n", text, re.M | re.S)[1].replace("\\\n", " ")
    words = shlex.split(example)
    assert tuple(words[: len(call) + 1]) == ("superpose", *call)
    parse(words[1:])


@pytest.mark.parametrize("call", [(), *CALLS], ids=" ".join)
def test_help_fits_eighty_columns_and_says_every_default_in_words(call, helped):
    text = helped(*call)
    options = text[text.index(" options ") :].splitlines()
    assert len(options) > 3
    assert max(map(len, options)) <= 80
    for word in ("default: None", "default: False", "default: )"):
        assert word not in " ".join(text.split())


def test_every_command_is_listed_with_its_first_sentence(helped):
    text = " ".join(re.sub("[│|]", " ", helped()).split())
    for name, command in COMMANDS.items():
        assert f" {name} {command.__doc__.partition(chr(10))[0]}" in text
