"""A strict reader for one kind of PNG: 8-bit RGB, not interlaced, of a known size.

It exists so that a plain install can read the CIFAR-10 mirror: an imaging library would be a
dependency for what is a zlib stream and five predictors.
"""

import struct
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def decode(picture: bytes, *, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Decode to (height, width, 3), or raise `ValueError` for any other or damaged picture."""
    chunks = list(_chunks(picture))
    expected = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    if not chunks or chunks[0] != (b"IHDR", expected):
        raise ValueError(f"not an 8-bit RGB picture of {width} × {height}")
    stream = zlib.decompressobj()
    size = height * (1 + 3 * width)
    data = stream.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"), size + 1)
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes of pixels instead of {size}")
    rows = np.frombuffer(data, np.uint8).reshape(height, 1 + 3 * width)
    return _unfilter(rows[:, 0], rows[:, 1:].reshape(height, width, 3))


def _chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not picture.startswith(SIGNATURE):
        raise ValueError("no PNG signature")
    position = len(SIGNATURE)
    while position < len(picture):
        head = picture[position : position + 8]
        length, kind = struct.unpack(">I4s", head) if len(head) == 8 else (0, b"")
        body = picture[position + 8 : position + 8 + length]
        position += 12 + length
        if picture[position - 4 : position] != struct.pack(">I", zlib.crc32(kind + body)):
            raise ValueError("a chunk is cut off or damaged")
        yield kind, body


def _unfilter(kinds: npt.NDArray[np.uint8], coded: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Undo the predictors: byte = coded + predictor(left, above, above left) mod 256.

    Rows that look only left, nearly all of a strip of images, are one cumulative sum; the others
    need the row above and are done one by one.
    """
    out = np.empty_like(coded)
    sub = kinds == 1
    out[sub] = np.cumsum(coded[sub], axis=1, dtype=np.uint8)
    for row in np.flatnonzero(~sub):
        above = out[row - 1] if row else np.zeros_like(out[row])
        if kinds[row] == 0:
            out[row] = coded[row]
        elif kinds[row] == 2:
            out[row] = coded[row] + above
        elif kinds[row] in (3, 4):
            predictor = _average if kinds[row] == 3 else _paeth
            line = _left_to_right(coded[row].tobytes(), above.tobytes(), predictor)
            out[row] = np.frombuffer(line, np.uint8).reshape(out[row].shape)
        else:
            raise ValueError(f"row {row} has filter {kinds[row]}, which does not exist")
    return out


def _left_to_right(coded: bytes, above: bytes, predictor: Callable[[int, int, int], int]) -> bytes:
    line, above = bytearray(3), bytes(3) + above  # the pixel left of the first is black
    for position, byte in enumerate(coded):
        guess = predictor(line[position], above[position + 3], above[position])
        line.append((byte + guess) & 255)
    return bytes(line[3:])


def _average(left: int, above: int, _: int) -> int:
    return (left + above) // 2


def _paeth(left: int, above: int, corner: int) -> int:
    """Choose the neighbour nearest to left + above − corner; the first of equals."""
    plane = left + above - corner
    return min((left, above, corner), key=lambda neighbour: abs(plane - neighbour))
