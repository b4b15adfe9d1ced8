"""Data sets, and streams of them that change over time."""

from superpose.data.datasets import NAMES, Dataset, Split, load, normalise
from superpose.data.directory import directory
from superpose.data.fetch import fetch
from superpose.data.incremental import Incremental
from superpose.data.permuting import Permuting
from superpose.data.rebuild import STREAMS, rebuild
from superpose.data.rotating import Rotating, rotate
from superpose.data.streams import Batch, Stream

__all__ = [
    "NAMES",
    "STREAMS",
    "Batch",
    "Dataset",
    "Incremental",
    "Permuting",
    "Rotating",
    "Split",
    "Stream",
    "directory",
    "fetch",
    "load",
    "normalise",
    "rebuild",
    "rotate",
]
