"""CLINC150: splits, intents numbered by domain, out-of-scope sentences."""

import hashlib
import json

import pytest

import superpose as sp
from superpose_lab.data import directory, materials
from superpose_lab.data.clinc150 import clinc150
from superpose_lab.data.files import File
from superpose_lab.data.materials import MATERIALS, Material

DOMAINS = {"work": ["pto", "meeting"], "bank": ["balance"]}
ROWS = [["take a day off", "pto"], ["what do i have", "balance"], ["book a room", "meeting"]]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Three intents in the layout of the files."""
    data = dict.fromkeys(("train", "val", "test"), ROWS)
    data |= {f"oos_{name}": [["who won", "oos"]] for name in ("train", "val", "test")}
    files = []
    (tmp_path / "clinc150").mkdir()
    for name, contents in (("data_full.json", data), ("domains.json", DOMAINS)):
        body = json.dumps(contents).encode()
        (tmp_path / "clinc150" / name).write_bytes(body)
        files.append(File(f"clinc150/{name}", len(body), hashlib.sha256(body).hexdigest()))
    made = Material("clinc150", tuple(files), ())
    monkeypatch.setitem(materials.MATERIALS, "clinc150", made)
    return tmp_path


def test_intents_are_numbered_domain_by_domain(small):
    data = clinc150(small)
    assert data.intents == ["pto", "meeting", "balance"]
    assert data.classes("bank") == range(2, 3)
    assert data.train.texts == [text for text, _ in ROWS]
    assert data.validation.intents == data.test.intents == [0, 2, 1]


def test_sentences_without_an_intent_come_last(small):
    data = clinc150(small, out_of_scope=True)
    assert (data.test.texts[-1], data.test.intents) == ("who won", [0, 2, 1, -1])


def test_a_file_that_was_changed_is_refused(small):
    path = small / "clinc150" / "domains.json"
    path.write_bytes(path.read_bytes().replace(b"bank", b"tank"))
    with pytest.raises(sp.SuperposeError, match="clinc150 is in none of the places tried"):
        clinc150(small)


def test_the_real_data_has_its_published_counts():
    if not all((directory().path / file.path).is_file() for file in MATERIALS["clinc150"].files):
        pytest.skip("clinc150 is not here")
    data = clinc150(out_of_scope=True)
    assert (len(data.domains), len(data.intents)) == (10, 150)
    for split, each, strange in (
        (data.train, 100, 100),
        (data.validation, 20, 100),
        (data.test, 30, 1000),
    ):
        assert [split.intents.count(k) for k in range(150)] == [each] * 150
        assert split.intents.count(-1) == strange
