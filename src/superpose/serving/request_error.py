"""A request that is refused: its HTTP status, and a sentence for the client."""

from __future__ import annotations


class RequestError(Exception):
    """Raised where a request is refused; REST and gRPC each write it in their own form."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after  # seconds
