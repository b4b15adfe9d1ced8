"""Types of command-line options, and the display of progress that commands share."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

if TYPE_CHECKING:
    from superpose.learning import Display


def unset(metavar: str, default: str) -> Any:
    """An option that may be left out, and the words for its default.

    >>> unset("FILE", "no file").help_behavior_hint
    '(default: no file)'
    """
    return arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


Flag = Annotated[bool, arg(help_behavior_hint="")]
DataDir = Annotated[Path | None, unset("DIR", "SUPERPOSE_DATA, else the user's cache")]


def for_terminal(labels: Sequence[str] = (), quiet: bool = False) -> "Display":
    """A live table on a terminal, lines in a log, or nothing."""
    from superpose.learning import Lines, LiveTable, Quiet

    if quiet:
        return Quiet()
    return LiveTable(labels) if sys.stdout.isatty() else Lines()
