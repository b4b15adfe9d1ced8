"""`superpose data`: the data sets, and pictures of the streams made from them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import (
    FlagCreatePairsOff,
    OmitSubcommandPrefixes,
    Positional,
    arg,
    configure,
    subcommand,
)

from superpose.options import DataDir, Flag, unset

if TYPE_CHECKING:
    from superpose.lab.data import ImageStream

DatasetName = Literal["mnist", "fashion-mnist", "cifar10", "cifar100", "digits"]
StreamName = Literal["permuting", "rotating", "incremental", "turning", "returning"]


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every command about data."""

    data_dir: DataDir = None
    """The directory of the data sets."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def tell(self, facts: object, text: object) -> None:
        """Print what a command has to say, for a program or for a person."""
        from rich.console import Console

        if self.json:
            print(json.dumps(facts))
        else:
            Console(highlight=False).print(text, soft_wrap=isinstance(text, str), markup=False)


@dataclass(frozen=True, kw_only=True)
class List(Common):
    """List the data sets, and tell which are downloaded.

    Example: superpose data list
    """

    def run(self) -> None:
        """Print a table."""
        from rich.table import Table

        from superpose.lab.data import directory
        from superpose.lab.data.catalogue import CATALOGUE
        from superpose.lab.data.datasets import present

        root = directory(self.data_dir).path
        table = Table("name", "images", "classes", "training", "test", "here")
        facts = []
        for entry in CATALOGUE.values():
            (train, test), here = entry.counts, present(entry, root)
            fact = {"name": entry.name, "shape": entry.shape, "classes": entry.classes}
            facts.append({**fact, "train": train, "test": test, "here": here})
            shape, answer = "×".join(map(str, entry.shape)), "yes" if here else "no"
            table.add_row(entry.name, shape, *map(str, (entry.classes, train, test)), answer)
        self.tell(facts, table)


@dataclass(frozen=True, kw_only=True)
class Fetch(Common):
    """Download data sets that are missing, and replace damaged files.

    Example: superpose data fetch mnist cifar10
    """

    name: Annotated[Positional[DatasetName], arg(metavar="NAME")]
    """The data set: mnist, fashion-mnist, cifar10, cifar100 or digits."""
    more: Annotated[
        Positional[tuple[DatasetName, ...]], arg(metavar="[NAME …]", help_behavior_hint="")
    ] = ()
    """More data sets."""

    def run(self) -> None:
        """Fetch one after the other."""
        from superpose.lab.data import fetch

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

    Example: superpose data where
    """

    def run(self) -> None:
        """Print one path."""
        from superpose.lab.data import directory

        found = directory(self.data_dir)
        path = str(found.path.absolute())
        self.tell({"data_dir": path, "chosen_by": found.chosen_by}, path)


@dataclass(frozen=True, kw_only=True)
class Show(Common):
    """Draw sample images of a stream, a row for each task or angle.

    Example: superpose data show rotating --dataset fashion-mnist --out rotating.png
    """

    stream: Annotated[Positional[StreamName], arg(metavar="STREAM")]
    """How the images change over time:
    • permuting, returning: pixels are permuted
    • rotating, turning: images turn, slowly or by 10° a task
    • incremental: other classes"""
    out: Annotated[Path, arg(metavar="FILE")]
    """The PNG file to write."""
    dataset: Annotated[
        DatasetName | None, unset("NAME", "mnist; for incremental cifar10, then cifar100")
    ] = None
    """The data set that the images come from."""
    group: int = 10
    """The number of classes in each task of an incremental stream."""
    tasks: int = 5
    """The number of tasks; a rotating stream has one."""
    seed: int = 0
    """The seed of the stream."""

    def run(self) -> None:
        """Write the picture."""
        from superpose.lab.data.sheet import contact_sheet

        contact_sheet(self._stream(), self.out)
        self.tell({"out": str(self.out)}, f"{self.out} is written")

    def _stream(self) -> "ImageStream":
        from superpose.lab.data import Incremental, Permuting, Returning, Rotating, Turning, load

        if self.stream == "incremental":
            first = None if self.dataset else load("cifar10", self.data_dir)
            groups = load(self.dataset or "cifar100", self.data_dir)
            return Incremental(groups, first, self.group, self.tasks, seed=self.seed, batch_size=1)
        dataset = load(self.dataset or "mnist", self.data_dir)
        if self.stream == "rotating":
            return Rotating(dataset, seed=self.seed, batch_size=1)
        kinds = {"permuting": Permuting, "turning": Turning, "returning": Returning}
        return kinds[self.stream](dataset, tasks=self.tasks, seed=self.seed, batch_size=1)


@configure(OmitSubcommandPrefixes, FlagCreatePairsOff)
@dataclass(frozen=True)
class DataCommand:
    """List, download and look at the data sets of the experiments.

    Example: superpose data fetch mnist
    """

    command: Annotated[
        Annotated[List, subcommand("list")]
        | Annotated[Fetch, subcommand("fetch")]
        | Annotated[Where, subcommand("where")]
        | Annotated[Show, subcommand("show")],
        arg(name=""),
    ]

    def run(self) -> None:
        """Run the command that was chosen."""
        self.command.run()
