"""The `superpose-lab` command: one file a command, errors in one sentence.

Commands import PyTorch when they run, so `superpose-lab --help` answers at once.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro
from tyro.conf import subcommand

from superpose import SuperposeError
from superpose_lab.cli.collect import CollectCommand
from superpose_lab.cli.data import DataCommand
from superpose_lab.cli.demo import DemoCommand
from superpose_lab.cli.reproduce import ReproduceCommand
from superpose_lab.cli.run import RunCommand

COMMANDS: dict[str, Any] = {
    "demo": DemoCommand,
    "run": RunCommand,
    "reproduce": ReproduceCommand,
    "collect": CollectCommand,
    "data": DataCommand,
}
ABOUT = """The experiments of the paper, and of what goes beyond it.

To begin:
  superpose-lab demo             see it work: ten tasks in one network, minutes
  superpose-lab COMMAND --help   the options of a command, and an example"""


def parse(words: Sequence[str]) -> Any:
    """Parse a command line into a command, ready to `run`."""
    if words and words[0] in COMMANDS:
        return tyro.cli(COMMANDS[words[0]], prog=f"superpose-lab {words[0]}", args=words[1:])
    listed = [
        Annotated[command, subcommand(name, description=command.__doc__.partition("\n")[0])]
        for name, command in COMMANDS.items()
    ]
    every: Any = Union[tuple(listed)]  # noqa: UP007 (of a list)
    return tyro.cli(every, prog="superpose-lab", args=words, description=ABOUT)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 it could not be done, 2 a wrong call."""
    warnings.formatwarning = lambda message, *where: f"superpose-lab: {message}\n"
    try:
        parse(sys.argv[1:] if arguments is None else list(arguments)).run()
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # the code that a shell gives for SIGPIPE
    except (SuperposeError, OSError) as error:
        print(f"superpose-lab: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
