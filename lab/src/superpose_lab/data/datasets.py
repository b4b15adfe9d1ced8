"""Data sets in memory: `uint8` as they are stored, normalised batch by batch."""

import hashlib
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from superpose import SuperposeError
from superpose_lab.data.archives import UnusableError
from superpose_lab.data.catalogue import CATALOGUE, Entry, Kind, find
from superpose_lab.data.data_directory import directory
from superpose_lab.data.fetch import fetch
from superpose_lab.data.files import File
from superpose_lab.data.formats import Bytes

NAMES = tuple(CATALOGUE)

# x ↦ (x/255 − mean)/deviation of MNIST for every grey data set, x ↦ x/127.5 − 1 for colour.
SCALES: dict[Kind, tuple[float, float]] = {
    "grey": (1 / (255 * 0.3081), -0.1307 / 0.3081),
    "colour": (1 / 127.5, -1.0),
}


class LabelledImages(NamedTuple):
    """Images (N, C, H, W) `uint8` and labels (N,) `int64`."""

    images: Bytes
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split; `kind` says how the pixels are normalised.

    Your own arrays make one too:

    >>> ones = LabelledImages(np.ones((6, 1, 4, 4), np.uint8), np.arange(6) % 2)
    >>> Dataset("mine", "grey", classes=2, train=ones, test=ones).shape
    (1, 4, 4)
    """

    name: str
    kind: Kind
    classes: int
    train: LabelledImages = field(repr=False)
    test: LabelledImages = field(repr=False)

    def __post_init__(self) -> None:
        if self.kind not in SCALES:
            raise SuperposeError(f"{self.name}: kind must be grey or colour, not {self.kind!r}")
        for images, labels in (self.train, self.test):
            if images.ndim != 4 or images.dtype != np.uint8 or images.shape[1:] != self.shape:
                raise SuperposeError(
                    f"{self.name}: images must be uint8 of (N, C, H, W), the same C, H, W in both "
                    f"splits, not {images.dtype} of {images.shape}"
                )
            if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
                raise SuperposeError(
                    f"{self.name}: labels must be {len(images)} integers, one an image, "
                    f"not {labels.dtype} of {labels.shape}"
                )
            if labels.size and not 0 <= labels.min() <= labels.max() < self.classes:
                raise SuperposeError(
                    f"{self.name}: labels run from {labels.min()} to {labels.max()}, "
                    f"which is outside 0 … {self.classes - 1}"
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all images and labels: what a result was made from."""
        digest = hashlib.sha256()
        for images, labels in (self.train, self.test):
            digest.update(repr(images.shape).encode())
            digest.update(np.ascontiguousarray(images).data)
            digest.update(labels.astype("<i8").data)
        return digest.hexdigest()


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set, verified, and fetched first if it is not there.

    >>> load("digits").train.images.shape
    (1437, 1, 8, 8)
    """
    entry, root = find(name), directory(data_dir).path
    if not entry.files:
        return _digits()
    if not present(entry, root):
        fetch(name, root)
    train, test = (_split(entry, files, root) for files in (entry.train, entry.test))
    return Dataset(name, entry.kind, entry.classes, train, test)


def present(entry: Entry, root: Path) -> bool:
    """Check that all files are there; they are verified when they are loaded."""
    return all((root / file.path).is_file() for file in entry.files)


def normalise(images: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Map pixels 0 … 255 to the `float32` that networks are fed.

    >>> normalise(torch.tensor([0, 255], dtype=torch.uint8), "colour")
    tensor([-1.,  1.])
    """
    scale, shift = SCALES[kind]
    return images.to(torch.float32, copy=True).mul_(scale).add_(shift)


def _split(entry: Entry, files: tuple[File, ...], root: Path) -> LabelledImages:
    contents = []
    for file in files:
        try:
            contents.append(file.read(root))
        except (UnusableError, OSError) as error:
            raise SuperposeError(
                f"{root / file.path} cannot be used: {error}; "
                f"`superpose-lab data fetch {entry.name}` replaces it"
            ) from error
    images, labels = entry.decode(contents)
    return LabelledImages(images, np.array(labels, np.int64))


def _digits() -> Dataset:
    """Take scikit-learn's 8 × 8 digits, 0 … 16 stretched to 0 … 255; the last fifth is the test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = digits.target.astype(np.int64)
    count = CATALOGUE["digits"].counts[0]
    train = LabelledImages(images[:count], labels[:count])
    test = LabelledImages(images[count:], labels[count:])
    return Dataset("digits", "grey", 10, train, test)
