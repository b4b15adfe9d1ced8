"""Quotations by topic: the texts of Debian's `fortunes` and `fortunes-min`."""

import os
import re

from superpose.lab.data.materials import material

FEWEST = 100  # quotations of a topic that tasks are made of


def quotations(data_dir: str | os.PathLike[str] | None = None) -> dict[str, list[str]]:
    """The quotations of each topic that has a hundred or more, in the order of their file."""
    files = material("fortunes", data_dir) | material("fortunes-min", data_dir)
    found = {topic: separated(files[topic].tobytes().decode("latin-1")) for topic in sorted(files)}
    return {topic: texts for topic, texts in found.items() if len(texts) >= FEWEST}


def separated(text: str) -> list[str]:
    """The texts between lines of `%`, each once, without what overstrikes and double spaces.

    >>> separated("One\\n\\tday.\\n%\\nN\\bNo.\\n%\\nNo.\\n%\\n")
    ['One day.', 'No.']
    """
    parts = re.split(r"^%\s*$", re.sub(".\b", "", text), flags=re.MULTILINE)
    texts = (" ".join(part.split()) for part in parts)
    return list(dict.fromkeys(one for one in texts if one))
