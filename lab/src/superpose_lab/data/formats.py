"""File contents ↔ arrays: idx, CIFAR records, CSV and picture strips. Bytes in, `uint8` out."""

import io
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Arrays = tuple[Bytes, Bytes]  # images (N, C, H, W), labels (N,)

IMAGE_HEADER, LABEL_HEADER = 16, 8  # magic number and sizes, four bytes each
COLOUR = (3, 32, 32)
PIXELS = 3 * 32 * 32


def idx_pair(files: Sequence[Bytes]) -> Arrays:
    """Read an idx file of images and one of labels as views, without a copy."""
    images, labels = files
    height, width = struct.unpack(">8x2I", images[:IMAGE_HEADER].tobytes())
    return images[IMAGE_HEADER:].reshape(-1, 1, height, width), labels[LABEL_HEADER:]


def idx(array: Bytes) -> bytes:
    """Write an array as an idx file: 0, 0, type 8 (`uint8`), rank, big-endian sizes, contents.

    >>> idx(np.array([7, 9], np.uint8)).hex(" ")
    '00 00 08 01 00 00 00 02 07 09'
    """
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def records(files: Sequence[Bytes]) -> Arrays:
    """Read CIFAR records (label, 3072 pixels by channel and row); one file needs no copy."""
    rows = [file.reshape(-1, 1 + PIXELS) for file in files]
    joined = rows[0] if len(rows) == 1 else np.concatenate(rows)
    return joined[:, 1:].reshape(-1, *COLOUR), joined[:, 0]


def canonical_records(file: Bytes) -> Bytes:
    """Reduce CIFAR-100 records (coarse label, fine label, pixels) to (fine label, pixels), sorted.

    Copies of this data set differ in the order of their records; sorted, they are one.
    """
    rows = np.ascontiguousarray(file.reshape(-1, 2 + PIXELS)[:, 1:])
    return rows[np.argsort(rows.view(f"V{1 + PIXELS}")[:, 0])].reshape(-1)


def csv_pair(text: bytes, shape: tuple[int, int]) -> tuple[bytes, bytes]:
    """Turn `label,pixel,pixel,…` lines under a header into idx files of images and labels."""
    rows = np.loadtxt(io.BytesIO(text), dtype=np.uint8, delimiter=",", skiprows=1, ndmin=2)
    return idx(rows[:, 1:].reshape(-1, *shape)), idx(rows[:, 0])


def rgb(picture: bytes, *, width: int, height: int) -> Bytes:
    """Read a PNG as (height, width, 3); `ValueError` if it is damaged or of another kind."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(picture), formats=["PNG"]) as checked:
            kind, size = checked.mode, checked.size
            checked.verify()  # the checksums, which reading the pixels leaves aside
        if (kind, size) != ("RGB", (width, height)):
            raise ValueError(f"not an RGB picture of {width} × {height}")
        with Image.open(io.BytesIO(picture), formats=["PNG"]) as opened:
            return np.asarray(opened)
    except UnidentifiedImageError as error:
        raise ValueError("not a PNG file") from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"a damaged PNG file: {error}") from error


def strip_records(picture: bytes, labels: Sequence[int]) -> bytes:
    """Turn a PNG with one 32 × 32 image a row (its 1024 pixels in a line) into CIFAR records."""
    pixels = rgb(picture, width=32 * 32, height=len(labels))  # (N, 1024, 3)
    planes = pixels.swapaxes(1, 2).reshape(len(labels), PIXELS)
    return np.column_stack([np.asarray(labels, np.uint8), planes]).tobytes()
