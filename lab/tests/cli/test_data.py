"""`superpose-lab data`: list, fetch, where."""

import json
from typing import get_args

import pytest
import tyro

from superpose_lab.cli.data import DataCommand, DatasetName
from superpose_lab.data import NAMES, catalogue, fetch


@pytest.fixture
def data(capsys):
    def call(*words: object) -> str:
        tyro.cli(DataCommand, prog="superpose-lab data", args=[str(word) for word in words]).run()
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return call


def test_list_says_what_is_here(data, small, site, clients, listed, tmp_path):
    small.gz(site[0])

    def here():
        facts = json.loads(data("list", "--json", "--data-dir", tmp_path))
        return {fact["name"]: fact["here"] for fact in facts}

    expected = dict.fromkeys(["mnist", "fashion-mnist", "cifar10", "cifar100"], False)
    assert here() == {**expected, "digits": True, "small": False}
    fetch("small", tmp_path)
    assert here() == {**expected, "digits": True, "small": True}
    rows = [
        line.split("│")[1:-1]
        for line in data("list", "--data-dir", tmp_path).splitlines()
        if "│" in line
    ]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert ["mnist", "1×28×28", "10", "60000", "10000", "no"] in cells
    assert ["small", "1×28×28", "10", "30", "20", "yes"] in cells


def test_the_words_are_the_names_in_the_library():
    assert get_args(DatasetName) == NAMES


def test_where_is_one_path(data, tmp_path, monkeypatch):
    monkeypatch.setenv("SUPERPOSE_DATA", str(tmp_path / "a [b]"))
    assert data("where") == f"{tmp_path / 'a [b]'}\n"
    facts = json.loads(data("where", "--json", "--data-dir", tmp_path))
    assert facts == {"data_dir": str(tmp_path), "chosen_by": "argument"}


def test_fetch_says_the_place(data, small, site, clients, monkeypatch, tmp_path):
    small.gz(site[0])
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", small.entry(site[1]))
    words = ("fetch", "mnist", "digits", "--data-dir", tmp_path)
    assert data(*words) == f"mnist: fetched from {site[1]}\ndigits: is here\n"
    none = {"name": "mnist", "from": None}, {"name": "digits", "from": None}
    assert json.loads(data(*words, "--json")) == list(none)


@pytest.mark.parametrize("words", [("fetch",), ("fetch", "imagenet"), ("forget",)])
def test_words_that_make_no_sense_are_a_usage_error(words, capsys):
    with pytest.raises(SystemExit) as stop:
        tyro.cli(DataCommand, prog="superpose-lab data", args=words)
    assert stop.value.code == 2
    assert capsys.readouterr().out == ""
