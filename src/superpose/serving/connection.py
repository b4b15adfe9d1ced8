"""HTTP connections: each answer in one piece, and clients that stall or vanish are let go.

uvicorn ends a connection that is silent between two requests. One that sent half a request, or that
does not read what it is sent, it would keep for ever.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

HEADER_BYTES = 64 << 10  # of one request
GONE = "superpose.gone"  # in the scope: what is called when the client goes away
R = TypeVar("R")
PHRASES = {408: "the request was not read in time", 431: "the headers are too large"}


class Connection(HttpToolsProtocol):
    """One connection; `since` is when it began to wait for a request, none when all of it came."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.since: float | None = self.loop.time()
        self._head: int | None = None  # bytes of headers so far; none if they are complete
        self._half = False  # a request, of which the rest is to come
        self._ended = False  # a request, in the bytes that came last
        self._unsent = 0  # bytes of answers that the client had not taken at the last look
        self._gone: list[Callable[[], object]] = []

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell those who work for the client."""
        super().connection_lost(exc)
        for leave in self._gone:
            leave()

    def on_message_begin(self) -> None:
        """The headers begin."""
        super().on_message_begin()
        self.since, self._head, self._half = self.loop.time(), 0, True

    def on_headers_complete(self) -> None:
        """The headers are there."""
        self._head = None
        self.scope[GONE] = self._gone  # type: ignore[literal-required]
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # whose answer has no body
            self.cycle.transport = OnePiece(self.transport, self.cycle)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """The request is there as a whole."""
        self._half, self._ended = False, True
        cycle = self.cycle
        answered = cycle is not None and cycle.response_complete
        self.since = self.loop.time() if answered else None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, if it is not there as a whole."""
        if self.since is not None or not self.pipeline:
            self.since = self.loop.time()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        """As it was, and headers are limited."""
        self._ended = False
        super().data_received(data)
        if self._head is not None and not self._ended:  # else most of it may be a body
            self._head += len(data)
            if self._head > HEADER_BYTES:
                self._refuse(431)

    def end_if_late(self, seconds: float) -> None:
        """Let the client go if it made the server wait for longer than this."""
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if self.since is not None and unsent < self._unsent:
            self.since = now  # it takes its answer, slowly
        self._unsent = unsent
        if self.since is None or now - self.since < seconds or self._busy():
            return
        if unsent or self.transport.is_closing():
            self.transport.abort()
        elif self._half:
            self._refuse(408)
        else:  # it sent nothing: an answer would be taken for that to its next request
            self.transport.close()

    def _busy(self) -> bool:
        """Whether a request that came as a whole is being served; what comes after it may wait."""
        cycle = self.cycle
        served = cycle is not None and not cycle.more_body and not cycle.response_complete
        return served or bool(self.pipeline)

    def _refuse(self, status: int) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps({"error": PHRASES[status]}).encode()
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(
            b"".join([STATUS_LINE[status], head.encode(), b"connection: close\r\n\r\n", body])
        )
        self.transport.close()


class OnePiece:
    """The transport of one answer, whose head is sent together with its body.

    Two writes would be two system calls, and would wake the client twice.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport, self._cycle = transport, cycle
        self._head: bytes | None = b""  # none after it was sent
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Send; the head waits for the first piece of the body, which always comes."""
        if self._head is None or not self._cycle.response_started:  # which is a "100 Continue"
            self._transport.write(data)
        elif not self._head:
            self._head = data
        else:
            self._transport.writelines([self._head, data])
            self._head = None

    def close(self) -> None:
        """Send what waits, and close."""
        if self._head:
            self._transport.write(self._head)
        self._transport.close()


async def end_late(connections: set[Any], seconds: float) -> None:
    """Look at all connections again and again."""
    while True:
        await asyncio.sleep(seconds / 4)
        for connection in list(connections):
            connection.end_if_late(seconds)


async def unless_gone(scope: Scope, work: Awaitable[R]) -> R:
    """Stop waiting when the client goes away; servers other than ours cancel by themselves."""
    current = asyncio.current_task()
    assert current is not None
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        current.cancel()

    leaving = scope.get(GONE, [])
    leaving.append(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if not gone:
            raise
        current.uncancel()
        raise ClientDisconnect from None
    finally:
        leaving.remove(leave)
