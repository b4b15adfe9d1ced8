"""`superpose-lab data`: the data sets."""

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import (
    FlagCreatePairsOff,
    OmitSubcommandPrefixes,
    Positional,
    arg,
    configure,
    subcommand,
)

from superpose_lab.options import DataDir, Flag

DatasetName = Literal["mnist", "fashion-mnist", "cifar10", "cifar100", "digits"]


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every command about data."""

    data_dir: DataDir = None
    """The directory of the data sets."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def show(self, facts: object, text: object) -> None:
        """Print facts as JSON, or text for a person."""
        from rich.console import Console

        if self.json:
            print(json.dumps(facts))
        else:
            Console(highlight=False).print(text, soft_wrap=isinstance(text, str), markup=False)


@dataclass(frozen=True, kw_only=True)
class List(Common):
    """List the data sets, and which are downloaded.

    Example: superpose-lab data list
    """

    def run(self) -> None:
        from rich.table import Table

        from superpose_lab.data import directory
        from superpose_lab.data.catalogue import CATALOGUE
        from superpose_lab.data.datasets import present

        root = directory(self.data_dir).path
        table = Table("name", "images", "classes", "training", "test", "here")
        facts = []
        for entry in CATALOGUE.values():
            (train, test), here = entry.counts, present(entry, root)
            fact = {"name": entry.name, "shape": entry.shape, "classes": entry.classes}
            facts.append({**fact, "train": train, "test": test, "here": here})
            shape, answer = "×".join(map(str, entry.shape)), "yes" if here else "no"
            table.add_row(entry.name, shape, *map(str, (entry.classes, train, test)), answer)
        self.show(facts, table)


@dataclass(frozen=True, kw_only=True)
class Fetch(Common):
    """Download data sets that are missing, and replace damaged files.

    Example: superpose-lab data fetch mnist cifar10
    """

    name: Annotated[Positional[DatasetName], arg(metavar="NAME")]
    """The data set: mnist, fashion-mnist, cifar10, cifar100 or digits."""
    more: Annotated[
        Positional[tuple[DatasetName, ...]], arg(metavar="[NAME …]", help_behavior_hint="")
    ] = ()
    """More data sets."""

    def run(self) -> None:
        from superpose_lab.data import fetch

        facts = []
        for name in (self.name, *self.more):
            place = fetch(name, self.data_dir)
            facts.append({"name": name, "from": place})
            if not self.json:
                print(f"{name}: {f'fetched from {place}' if place else 'is here'}")
        if self.json:
            print(json.dumps(facts))


@dataclass(frozen=True, kw_only=True)
class Where(Common):
    """Print the data directory.

    Example: superpose-lab data where
    """

    def run(self) -> None:
        from superpose_lab.data import directory

        chosen = directory(self.data_dir)
        path = str(chosen.path.absolute())
        self.show({"data_dir": path, "chosen_by": chosen.chosen_by}, path)


@configure(OmitSubcommandPrefixes, FlagCreatePairsOff)
@dataclass(frozen=True)
class DataCommand:
    """List and download the data sets of the experiments.

    Example: superpose-lab data fetch mnist
    """

    command: Annotated[
        Annotated[List, subcommand("list")]
        | Annotated[Fetch, subcommand("fetch")]
        | Annotated[Where, subcommand("where")],
        arg(name=""),
    ]

    def run(self) -> None:
        self.command.run()
