"""Types that options of several commands share; `unset` says in words what a default of None is."""

from typing import Annotated, Any

from tyro.conf import arg


def unset(metavar: str, default: str) -> Any:
    """An option that may be left out, and the words for its default.

    >>> unset("FILE", "no file").help_behavior_hint
    '(default: no file)'
    """
    return arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


Flag = Annotated[bool, arg(help_behavior_hint="")]
Words = Annotated[tuple[str, ...], arg(help_behavior_hint="")]
