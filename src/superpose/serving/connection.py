"""HTTP connections that stall or vanish.

uvicorn closes a connection that is silent between two requests. It would keep one that sent half a
request, or that does not read its answer, for ever; and it lets a handler go on when its client is
gone.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEADER_BYTES = 64 << 10
ON_DISCONNECT = "superpose.on_disconnect"  # in the scope of a request: callbacks
MESSAGES = {408: "the request was not read in time", 431: "the headers are too large"}
R = TypeVar("R")


class ClientGoneError(Exception):
    """The client of a request disconnected."""


class Connection(HttpToolsProtocol):
    """One connection, which waits `read_seconds` for its client to send or to read."""

    def __init__(self, *args: Any, read_seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_seconds = read_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes of answers that the client had not taken at the last check
        self._incomplete = False  # a request has begun to arrive
        self._header_bytes: int | None = None  # none outside of headers
        self._completed = False  # a request ended in the bytes that came last
        self._on_disconnect: list[Callable[[], object]] = []

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_client()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        for callback in self._on_disconnect:
            callback()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes, self._incomplete = 0, True
        self._wait_for_client()

    def on_headers_complete(self) -> None:
        self._header_bytes = None
        self.scope[ON_DISCONNECT] = self._on_disconnect  # type: ignore[literal-required]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._incomplete, self._completed = False, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_client()

    def data_received(self, data: bytes) -> None:
        self._completed = False
        super().data_received(data)
        if self._header_bytes is not None and not self._completed:  # else most may be a body
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(431)

    def _wait_for_client(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unsent = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self._read_seconds, self._close_if_stalled)

    def _close_if_stalled(self) -> None:
        cycle, unsent = self.cycle, self.transport.get_write_buffer_size()
        serving = cycle is not None and not cycle.more_body and not cycle.response_complete
        if serving or self.pipeline or unsent < self._unsent:
            self._wait_for_client()
        elif unsent or self.transport.is_closing():
            self.transport.abort()
        elif self._incomplete:
            self._refuse(408)
        else:  # nothing was sent: an answer would be taken for that of the next request
            self.transport.close()

    def _refuse(self, status: int) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps({"error": MESSAGES[status]})
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        text = f"{head}connection: close\r\n\r\n{body}"
        self.transport.write(STATUS_LINE[status] + text.encode())
        self.transport.close()


async def cancel_if_gone(scope: dict[str, Any], work: Coroutine[Any, Any, R]) -> R:
    """Await work; if the client disconnects, cancel it and raise `ClientGoneError`."""
    task, current = asyncio.create_task(work), asyncio.current_task()
    callbacks = scope.get(ON_DISCONNECT, [])
    callbacks.append(task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if current is not None and current.cancelling():  # by the server, not by the client
            raise
        raise ClientGoneError from None
    finally:
        callbacks.remove(task.cancel)
