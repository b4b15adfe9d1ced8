"""A file of the data directory, verified by its SHA-256."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from superpose_lab.data.archives import UnusableError
from superpose_lab.data.formats import Bytes


@dataclass(frozen=True)
class File:
    """A path in the data directory, the size of the file and the SHA-256 of its contents.

    Where copies of a data set differ in order, `canonical` puts the contents into the one order
    that is hashed and read.
    """

    path: str
    size: int
    sha256: str
    canonical: Callable[[Bytes], Bytes] | None = None

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    def read(self, root: Path) -> Bytes:
        """Map the file into memory (a copy only where the order has to change), verified."""
        path = root / self.path
        if path.stat().st_size == 0:  # which cannot be mapped
            return self.check(np.empty(0, np.uint8))
        # Copy-on-write: PyTorch warns about arrays that cannot be written to.
        return self.check(np.memmap(path, np.uint8, mode="c"))

    def check(self, contents: Bytes) -> Bytes:
        """Give the contents back in canonical order, or raise `UnusableError`."""
        if contents.size != self.size:
            raise UnusableError(f"{contents.size} bytes instead of {self.size}")
        if self.canonical is not None:
            contents = self.canonical(contents)
        if (digest := hashlib.sha256(contents.data).hexdigest()) != self.sha256:
            raise UnusableError(f"SHA-256 {digest[:16]}… instead of {self.sha256[:16]}…")
        return contents
