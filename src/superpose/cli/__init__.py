"""The `superpose` command: one file a command, one dataclass each, errors in one sentence."""

import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import tyro
from tyro.conf import subcommand

from superpose.cli.bench import BenchCommand
from superpose.cli.data import DataCommand
from superpose.cli.demo import DemoCommand
from superpose.cli.inspect import InspectCommand
from superpose.cli.pack import PackCommand
from superpose.cli.plan import PlanCommand
from superpose.cli.report import ReportCommand
from superpose.cli.reproduce import ReproduceCommand
from superpose.cli.run import RunCommand
from superpose.cli.serve import ServeCommand
from superpose.cli.unpack import UnpackCommand
from superpose.errors import SuperposeError
from superpose.extras import require

Command = (
    Annotated[DemoCommand, subcommand("demo")]
    | Annotated[RunCommand, subcommand("run")]
    | Annotated[ReproduceCommand, subcommand("reproduce")]
    | Annotated[ReportCommand, subcommand("report")]
    | Annotated[DataCommand, subcommand("data")]
    | Annotated[PackCommand, subcommand("pack")]
    | Annotated[UnpackCommand, subcommand("unpack")]
    | Annotated[InspectCommand, subcommand("inspect")]
    | Annotated[PlanCommand, subcommand("plan")]
    | Annotated[BenchCommand, subcommand("bench")]
    | Annotated[ServeCommand, subcommand("serve")]
)
LAB = (DemoCommand, RunCommand, ReproduceCommand, ReportCommand, DataCommand, BenchCommand)


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
        if isinstance(command, LAB):
            require(words[0])
        elif isinstance(command, ServeCommand):
            require(words[0], extra="serve")
        command.run()
    except (SuperposeError, OSError) as error:
        print(f"superpose: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
