"""The one error a user can cause, raised where the value comes in, and its commonest reason."""


class SuperposeError(ValueError):
    """Bad input: the message names the offending value and says what to do."""


def at_least_one(**counts: int) -> None:
    """Refuse a count below 1, by its name.

    >>> at_least_one(tasks=3, steps=0)
    Traceback (most recent call last):
    superpose.errors.SuperposeError: steps=0: must be at least 1
    """
    for name, value in counts.items():
        if value < 1:
            raise SuperposeError(f"{name}={value}: must be at least 1")


def kind_of(value: object) -> str:
    """What a value that is none of those wanted is; its `repr` may be a page of numbers."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
