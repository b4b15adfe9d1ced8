"""The error of a refused request."""


class RequestError(Exception):
    """A request is refused: with an HTTP status, and a sentence for the client.

    `retry_after` is the number of seconds after which the client may try again.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
