"""The `superpose` command: one file a command, one dataclass each, errors in one sentence.

Commands import PyTorch when they run, not before: `superpose --help` answers at once.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro
from tyro.conf import subcommand

from superpose.cli.inspect import InspectCommand
from superpose.cli.pack import PackCommand
from superpose.cli.plan import PlanCommand
from superpose.cli.serve import ServeCommand
from superpose.cli.unpack import UnpackCommand
from superpose.errors import SuperposeError
from superpose.extras import require

COMMANDS: dict[str, Any] = {
    "pack": PackCommand,
    "unpack": UnpackCommand,
    "inspect": InspectCommand,
    "plan": PlanCommand,
    "serve": ServeCommand,
}
ABOUT = """Many models in one set of weights, each given back by its context.

To begin:
  superpose pack --help      pack trained models into one file
  superpose COMMAND --help   the options of a command, and an example
  superpose --version        the version"""


def parse(words: Sequence[str]) -> Any:
    """The command that the words of a command line say, ready to `run`."""
    if words and words[0] in COMMANDS:
        command = COMMANDS[words[0]]
        return tyro.cli(command, prog=f"superpose {words[0]}", args=words[1:])
    listed = [
        Annotated[command, subcommand(name, description=command.__doc__.partition("\n")[0])]
        for name, command in COMMANDS.items()
    ]
    any_of_them: Any = Union[tuple(listed)]  # noqa: UP007 (of a list)
    return tyro.cli(any_of_them, prog="superpose", args=words, description=ABOUT)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 it could not be done, 2 the call's words are off."""
    warnings.formatwarning = lambda message, *where: f"superpose: {message}\n"
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # as the shell tells of SIGPIPE
    except (SuperposeError, OSError) as error:
        print(f"superpose: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(words: list[str]) -> None:
    if words == ["--version"]:
        from importlib.metadata import version

        print(f"superpose {version('superpose')}")
        return
    try:
        command = parse(words)
    except SystemExit:
        sys.stdout.flush()  # the help: a broken pipe shows here
        raise
    if isinstance(command, ServeCommand):
        require(words[0], extra="serve")
    command.run()
