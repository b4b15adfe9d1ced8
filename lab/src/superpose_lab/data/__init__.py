"""Data sets, and streams of them that change over time."""

from superpose_lab.data.data_directory import directory
from superpose_lab.data.datasets import NAMES, Dataset, LabelledImages, load, normalise
from superpose_lab.data.fetch import fetch
from superpose_lab.data.image_stream import ImageStream
from superpose_lab.data.incremental import Incremental
from superpose_lab.data.permuting import Permuting, Returning
from superpose_lab.data.rotating import Rotating, Turning, rotate

__all__ = [
    "NAMES",
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
    "rotate",
]
