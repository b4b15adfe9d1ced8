"""The one error a user can cause, raised where the value comes in."""


class SuperposeError(ValueError):
    """Bad input: the message names the offending value and says what to do."""
