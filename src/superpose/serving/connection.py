"""HTTP connections that end: a client that sends half a request, or reads no answer, is let go.

uvicorn ends a connection that is silent between two requests. One that sent half a header, or that
does not read what it is sent, it would keep for ever.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEADER_BYTES = 64 << 10  # of one request
PHRASES = {408: "the request was not read in time", 431: "the headers are too large"}


class Connection(HttpToolsProtocol):
    """One connection; `since` is when it began to wait for a request, none while it serves one."""

    since: float | None = None
    _head: int | None = None  # bytes of headers so far; none if no headers are being read
    _unsent = 0  # bytes of answers that the client has not taken, when it was looked at last

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.since = self.loop.time()

    def on_message_begin(self) -> None:
        """The headers begin."""
        super().on_message_begin()
        self._head = 0

    def on_headers_complete(self) -> None:
        """The headers are there; who serves the request sees to it that its body comes in time."""
        self.since = self._head = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, if it is not there yet."""
        if not self.pipeline:
            self.since = self.loop.time()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        """As it was, and headers are limited."""
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > HEADER_BYTES:
                self._refuse(431)

    def end_if_late(self, seconds: float) -> None:
        """Let the client go if it made the server wait for longer than this."""
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if self.since is not None and unsent < self._unsent:
            self.since = now  # it takes its answer, slowly
        self._unsent = unsent
        if self.since is None or now - self.since < seconds:
            return
        if unsent or self.transport.is_closing():
            self.transport.abort()
        else:
            self._refuse(408)

    def _refuse(self, status: int) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps({"error": PHRASES[status]}).encode()
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(
            b"".join([STATUS_LINE[status], head.encode(), b"connection: close\r\n\r\n", body])
        )
        self.transport.close()


async def end_late(connections: set[Any], seconds: float) -> None:
    """Look at all connections again and again."""
    while True:
        await asyncio.sleep(seconds / 4)
        for connection in list(connections):
            connection.end_if_late(seconds)
