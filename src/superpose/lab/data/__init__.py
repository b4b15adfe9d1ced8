"""Data sets, and streams of them that change over time."""

from superpose.lab.data.data_directory import directory
from superpose.lab.data.datasets import NAMES, Dataset, LabelledImages, load, normalise
from superpose.lab.data.fetch import fetch
from superpose.lab.data.image_stream import ImageStream
from superpose.lab.data.incremental import Incremental
from superpose.lab.data.permuting import Permuting
from superpose.lab.data.rebuild import STREAMS, rebuild
from superpose.lab.data.returning import Returning
from superpose.lab.data.rotating import Rotating, rotate
from superpose.lab.data.turning import Turning

__all__ = [
    "NAMES",
    "STREAMS",
    "Dataset",
    "ImageStream",
    "Incremental",
    "LabelledImages",
    "Permuting",
    "Returning",
    "Rotating",
    "Turning",
    "directory",
    "fetch",
    "load",
    "normalise",
    "rebuild",
    "rotate",
]
