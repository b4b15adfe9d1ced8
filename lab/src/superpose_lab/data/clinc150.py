"""CLINC150: sentences by intent, 150 intents in ten domains, and sentences that have none of them.

Larson et al., An Evaluation Dataset for Intent Classification and Out-of-Scope Prediction,
EMNLP-IJCNLP 2019; https://github.com/clinc/oos-eval; Creative Commons Attribution 3.0.
"""

import os
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from superpose_lab.data.materials import material
from superpose_lab.files import parsed


class Sentences(NamedTuple):
    """Sentences, and the number of the intent of each; -1 is out of scope."""

    texts: list[str]
    intents: list[int]


@dataclass(frozen=True)
class Clinc150:
    """The three splits; intents are numbered domain by domain, fifteen each."""

    domains: dict[str, list[str]]
    train: Sentences
    validation: Sentences
    test: Sentences

    @property
    def intents(self) -> list[str]:
        """The names of the intents, by their numbers."""
        return [intent for names in self.domains.values() for intent in names]

    def classes(self, domain: str) -> range:
        """The numbers of the intents of a domain."""
        start = self.intents.index(self.domains[domain][0])
        return range(start, start + len(self.domains[domain]))


def clinc150(
    data_dir: str | os.PathLike[str] | None = None, out_of_scope: bool = False
) -> Clinc150:
    """Load CLINC150, verified, from `clinc150/` in the data directory; fetched first if missing.

    With `out_of_scope`, the splits end with the sentences that have no intent.
    """
    files = {
        name: parsed(body.tobytes().decode())
        for name, body in material("clinc150", data_dir).items()
    }
    domains: dict[str, list[str]] = files["domains.json"]
    numbers = {name: k for k, name in enumerate(chain.from_iterable(domains.values()))}

    def split(name: str) -> Sentences:
        rows = list(files["data_full.json"][name])
        rows += files["data_full.json"][f"oos_{name}"] if out_of_scope else []
        texts, intents = zip(*rows, strict=True)
        return Sentences(list(texts), [numbers.get(intent, -1) for intent in intents])

    return Clinc150(domains, split("train"), split("val"), split("test"))
