"""Streams by name, and the stream that a description tells of."""

import os
from collections.abc import Mapping
from typing import Any

from superpose.errors import SuperposeError
from superpose.lab.data.datasets import Dataset, load
from superpose.lab.data.image_stream import ImageStream
from superpose.lab.data.incremental import Incremental
from superpose.lab.data.permuting import Permuting
from superpose.lab.data.pool import Device
from superpose.lab.data.returning import Returning
from superpose.lab.data.rotating import Rotating
from superpose.lab.data.turning import Turning

STREAMS: dict[str, type[ImageStream]] = {
    "permuting": Permuting,
    "rotating": Rotating,
    "incremental": Incremental,
    "turning": Turning,
    "returning": Returning,
}


def rebuild(
    description: Mapping[str, Any],
    data_dir: str | os.PathLike[str] | None = None,
    device: Device = "cpu",
) -> ImageStream:
    """Make the stream whose `describe()` this is, from the same data and no other.

    >>> stream = Permuting(load("digits"), period=10, seed=3)
    >>> rebuild(stream.describe()).batch(499).y.equal(stream.batch(499).y)
    True
    """
    settings = dict(description)
    name = settings.pop("stream", None)
    if name not in STREAMS:
        raise SuperposeError(f"there is no stream {name!r}; there are {', '.join(STREAMS)}")
    for setting, value in settings.items():
        if isinstance(value, Mapping):
            settings[setting] = _same(load(value["name"], data_dir), value["digest"])
    return STREAMS[name](**settings, device=device)


def _same(dataset: Dataset, digest: str) -> Dataset:
    if dataset.digest != digest:
        raise SuperposeError(
            f"{dataset.name} here has the digest {dataset.digest[:16]}…, the stream was made from "
            f"{digest[:16]}…: find the data that it was made from"
        )
    return dataset
