"""Reading archives from elsewhere: members by exact name, of bounded size, into memory only.

Nothing is unpacked onto the disk, so no path or link in an archive can lead anywhere; a member
that is not a plain file, comes twice or is larger than it may be, is an error.
"""

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

Limits = Mapping[str, int]  # the name of a member → the most bytes it may have

OVERHEAD = 1 << 24  # what an archive may hold besides: code, licences, headers


class Readable(Protocol):
    """Anything that bytes can be read from."""

    def read(self, size: int, /) -> bytes: ...


class UnusableError(Exception):
    """A place, or what came from it, is of no use; the message is the reason."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn every way in which a file can be broken into `UnusableError`."""
    packed = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, tarfile.TarError)
    inside = (zipfile.BadZipFile, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
    try:
        yield
    except (*packed, *inside) as error:
        raise UnusableError(f"{path.name}: {error}") from error


def gunzip(file: IO[bytes], limit: int) -> bytes:
    """Unpack one gzip file of at most `limit` bytes."""
    with gzip.open(file) as unpacked:
        return _at_most(unpacked, limit)


def tar(stream: Readable, wanted: Limits) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted members of an uncompressed tar stream, in the order of the archive."""
    missing = dict(wanted)
    capped = _Capped(stream, sum(wanted.values()) + OVERHEAD)
    with tarfile.open(fileobj=capped, mode="r|") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if name not in wanted:
                continue
            file = archive.extractfile(member) if member.isfile() else None
            if file is None or name not in missing:
                raise UnusableError(f"{name} is in the archive twice, or is not a plain file")
            yield name, _at_most(file, missing.pop(name))
            if not missing:
                return
    raise UnusableError(f"no {', '.join(missing)} in the archive")


def tar_gz(path: Path, wanted: Limits) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted members of a `.tar.gz`."""
    with reading(path), gzip.open(path) as stream:
        yield from tar(stream, wanted)


def wheel(path: Path, wanted: Limits) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted members of a wheel, or any zip file."""
    with reading(path), zipfile.ZipFile(path) as archive:
        if absent := set(wanted).difference(archive.namelist()):
            raise UnusableError(f"no {', '.join(sorted(absent))} in the archive")
        for name, limit in wanted.items():
            with archive.open(name) as file:
                yield name, _at_most(file, limit)


def deb(path: Path, wanted: Limits) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted members of a Debian package: an ar archive with a tar archive inside."""
    openers: dict[str, Callable[[IO[bytes]], Readable]]
    openers = {"data.tar.gz": gzip.open, "data.tar.xz": lzma.open}
    with reading(path), path.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise UnusableError(f"{path.name} is not a Debian package")
        while len(header := file.read(60)) == 60:
            name, size = header[:16].decode().rstrip(" /"), int(header[48:58])
            if name in openers:
                body = io.BytesIO(file.read(size))
                yield from tar(openers[name](body), wanted)
                return
            file.seek(size + size % 2, io.SEEK_CUR)  # members start at even offsets
    raise UnusableError(f"{path.name} has no data.tar with gzip or xz compression")


def _at_most(file: Readable, limit: int) -> bytes:
    contents = file.read(limit + 1)
    if len(contents) > limit:
        raise UnusableError(f"larger than the {limit} bytes it should have")
    return contents


class _Capped(io.RawIOBase):
    """A stream that refuses to be read past `limit` bytes: no archive can unpack without end."""

    def __init__(self, stream: Readable, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise UnusableError("the archive unpacks to far more than it should")
        return data
