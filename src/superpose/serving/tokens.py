"""Bearer tokens of clients and of those who may load and unload."""

import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from superpose import SuperposeError
from superpose.serving.request_error import RequestError


@dataclass(frozen=True)
class Tokens:
    """Tokens that are accepted.

    Without `clients` everybody may send requests. Without `control` nobody may load or unload.
    """

    clients: tuple[bytes, ...] = ()
    control: tuple[bytes, ...] = ()

    @classmethod
    def read(cls, clients: Path | None = None, control: Path | None = None) -> Self:
        """Read files with one token a line; lines that start with # are comments."""
        return cls(*(() if path is None else _lines(path) for path in (clients, control)))

    def check(self, header: str | None) -> None:
        """Raise `RequestError` 401 unless the header `Authorization` holds an accepted token."""
        if self.clients and not _matches(header, (*self.clients, *self.control)):
            raise RequestError(401, "a token is needed: send it as Authorization: Bearer TOKEN")

    def check_control(self, header: str | None) -> None:
        """Raise `RequestError` 401 or 403 unless the header holds a control token."""
        if not self.control:
            hint = "start the server with --control-token-file"
            raise RequestError(403, f"control calls are off: {hint}")
        if not _matches(header, self.control):
            raise RequestError(401, "a control call needs a token of --control-token-file")


def _lines(path: Path) -> tuple[bytes, ...]:
    lines = [line.strip() for line in path.read_text().splitlines()]
    tokens = tuple(line.encode() for line in lines if line and not line.startswith("#"))
    if not tokens:
        raise SuperposeError(f"{path} holds no token: write one a line")
    return tokens


def _matches(header: str | None, tokens: tuple[bytes, ...]) -> bool:
    scheme, _, token = (header or "").partition(" ")
    sent = token.strip().encode("utf-8", "surrogateescape")
    equal = [hmac.compare_digest(sent, token) for token in tokens]  # all: time must not tell which
    return scheme.lower() == "bearer" and any(equal)
