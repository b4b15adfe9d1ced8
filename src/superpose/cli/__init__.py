"""The `superpose` command: one file a command, one dataclass each, errors in one sentence."""

import sys
from collections.abc import Sequence
from typing import Annotated

import tyro
from tyro.conf import subcommand

from superpose.cli.data import Data
from superpose.cli.demo import Demo
from superpose.cli.run import Run
from superpose.errors import SuperposeError

Command = (
    Annotated[Demo, subcommand("demo")]
    | Annotated[Run, subcommand("run")]
    | Annotated[Data, subcommand("data")]
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 it could not be done, 2 the call's words are off."""
    command: Demo | Run | Data = tyro.cli(
        Command,
        prog="superpose",
        args=arguments,
        description=__doc__,
    )
    try:
        command.run()
    except (SuperposeError, OSError) as error:
        print(f"superpose: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
