"""The `superpose` command: one file a command, one dataclass each, errors in one sentence."""

import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import tyro
from tyro.conf import subcommand

from superpose.cli.bench import Bench
from superpose.cli.data import Data
from superpose.cli.demo import Demo
from superpose.cli.inspect import Inspect
from superpose.cli.pack import Pack
from superpose.cli.plan import Plan
from superpose.cli.report import Report
from superpose.cli.reproduce import Reproduce
from superpose.cli.run import Run
from superpose.cli.unpack import Unpack
from superpose.errors import SuperposeError

Command = (
    Annotated[Demo, subcommand("demo")]
    | Annotated[Run, subcommand("run")]
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Data, subcommand("data")]
    | Annotated[Pack, subcommand("pack")]
    | Annotated[Unpack, subcommand("unpack")]
    | Annotated[Inspect, subcommand("inspect")]
    | Annotated[Plan, subcommand("plan")]
    | Annotated[Bench, subcommand("bench")]
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 it could not be done, 2 the call's words are off."""
    warnings.formatwarning = lambda message, *where: f"superpose: {message}\n"
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        print(f"superpose {version('superpose')}")
        return
    try:
        command: Any = tyro.cli(
            Command,
            prog="superpose",
            args=words,
            description="Many models in one set of weights, each given back by its context.",
        )
        command.run()
    except (SuperposeError, OSError) as error:
        print(f"superpose: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
