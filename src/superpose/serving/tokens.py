"""Bearer tokens: who may ask, and who may change what is served."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

from superpose.errors import SuperposeError
from superpose.serving.request_error import RequestError


@dataclass(frozen=True)
class Tokens:
    """Tokens of clients; without any everybody may ask, and nobody may change anything."""

    clients: tuple[bytes, ...] = ()
    control: tuple[bytes, ...] = ()

    @classmethod
    def read(cls, clients: Path | None = None, control: Path | None = None) -> Tokens:
        """Of files with a token a line."""
        return cls(*(() if path is None else _lines(path) for path in (clients, control)))

    def check(self, header: str | None) -> None:
        """Refuse a client without a token, if there are any; one of control will do, too."""
        if self.clients and not _among(header, (*self.clients, *self.control)):
            raise RequestError(
                401, "a bearer token is needed: send it as Authorization: Bearer TOKEN"
            )

    def check_control(self, header: str | None) -> None:
        """Refuse a control call without a token of its own."""
        if not self.control:
            raise RequestError(
                403, "control calls are off: start the server with --control-token-file"
            )
        if not _among(header, self.control):
            raise RequestError(401, "a control call needs a token of --control-token-file")


def _lines(path: Path) -> tuple[bytes, ...]:
    lines = [line.strip() for line in path.read_text().splitlines()]
    tokens = tuple(line.encode() for line in lines if line and not line.startswith("#"))
    if not tokens:
        raise SuperposeError(f"{path} holds no token: write one a line")
    return tokens


def _among(header: str | None, tokens: tuple[bytes, ...]) -> bool:
    kind, _, token = (header or "").partition(" ")
    given = token.strip().encode("utf-8", "surrogateescape")
    same = [hmac.compare_digest(given, one) for one in tokens]  # all, so that time tells nothing
    return kind.lower() == "bearer" and any(same)
