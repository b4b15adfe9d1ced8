import json
from typing import get_args

import numpy as np
import pytest
import tyro
from PIL import Image

from superpose.cli.data import DataCommand, DatasetName, StreamName
from superpose.errors import SuperposeError
from superpose.lab.data import NAMES, STREAMS, catalogue, fetch


@pytest.fixture
def data(capsys):
    def call(*words: object) -> str:
        tyro.cli(DataCommand, prog="superpose data", args=[str(word) for word in words]).run()
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return call


def test_list_tells_what_is_here(data, small, site, clients, listed, tmp_path):
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
    assert get_args(StreamName) == tuple(STREAMS)


def test_where_is_one_path(data, tmp_path, monkeypatch):
    monkeypatch.setenv("SUPERPOSE_DATA", str(tmp_path / "a [b]"))
    assert data("where") == f"{tmp_path / 'a [b]'}\n"
    facts = json.loads(data("where", "--json", "--data-dir", tmp_path))
    assert facts == {"data_dir": str(tmp_path), "chosen_by": "argument"}


def test_fetch_tells_the_place(data, small, site, clients, monkeypatch, tmp_path):
    small.gz(site[0])
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", small.entry(site[1]))
    words = ("fetch", "mnist", "digits", "--data-dir", tmp_path)
    assert data(*words) == f"mnist: fetched from {site[1]}\ndigits: is here\n"
    none = {"name": "mnist", "from": None}, {"name": "digits", "from": None}
    assert json.loads(data(*words, "--json")) == list(none)


@pytest.mark.parametrize(
    "words",
    [
        ("fetch",),
        ("fetch", "imagenet"),
        ("show", "wobbling", "--out", "x.png"),
        ("show", "rotating"),
        ("show", "rotating", "--out", "x.png", "--dataset", "imagenet"),
        ("forget",),
    ],
)
def test_words_that_make_no_sense_are_a_usage_error(words, capsys):
    with pytest.raises(SystemExit) as stop:
        tyro.cli(DataCommand, prog="superpose data", args=words)
    assert stop.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["list", "fetch", "where", "show"])
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        tyro.cli(DataCommand, prog="superpose data", args=[command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"Example: superpose data {command}" in text
    assert "--data-dir" in text
    assert "--json" in text


@pytest.mark.parametrize(
    ("stream", "rows"), [("permuting", 5), ("rotating", 10), ("incremental", 5)]
)
def test_show_draws_a_sheet(data, tmp_path, stream, rows):
    out = tmp_path / "sheet.png"
    words = ("show", stream, "--dataset", "digits", "--group", 2, "--out", out)
    assert data(*words, "--json") == json.dumps({"out": str(out)}) + "\n"
    first = out.read_bytes()
    picture = np.asarray(Image.open(out).convert("L"))
    images = picture[:, picture.shape[1] // 2 :]  # the titles are on the left
    blank = np.r_[True, (images > 250).all(1), True]
    starts, stops = (np.flatnonzero(np.diff(blank.astype(int)) == sign) for sign in (-1, 1))
    bands = {images[start:stop].tobytes() for start, stop in zip(starts, stops, strict=True)}
    assert len(starts) == len(bands) == rows, "each task or angle is a band of its own"
    data(*words)
    assert out.read_bytes() == first
    if stream == "permuting":
        data(*words, "--seed", 1)
        assert out.read_bytes() != first


def test_a_picture_that_cannot_be_made_is_an_error(data, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        data("show", "rotating", "--dataset", "digits", "--out", tmp_path / "nowhere" / "x.png")
    with pytest.raises(SuperposeError, match="5 tasks of 10 classes need 50"):
        data("show", "incremental", "--dataset", "digits", "--out", tmp_path / "x.png")
