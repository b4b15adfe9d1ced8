"""The server: HTTP and gRPC in one event loop, from start to drained stop."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp

from superpose.errors import SuperposeError
from superpose.serving.connection import Connection, end_late
from superpose.serving.rest import Post, application
from superpose.serving.rpc import Rpc
from superpose.serving.service import Limits, Service
from superpose.serving.tokens import Tokens

WATCH = 1.0  # seconds between looks at the file
FOLLOW = 0.2  # and at what other processes changed
CONNECTIONS = 4096
GARBAGE = 10_000  # objects between two looks for garbage: 700 are those of a few requests


class Http:
    """An ASGI application on its port; port 0 is any that is free.

    `run` serves until SIGTERM or SIGINT, then ends what it accepted. As a context manager it serves
    in a thread.
    """

    def __init__(self, app: ASGIApp, limits: Limits, host: str, port: int) -> None:
        self._host = host
        self._socket = _bound(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._started = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="on",
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=int(limits.drain_seconds),
            ),
            self._stopping,
            limits.read_seconds,
        )

    def _stopping(self) -> None:
        """No further request is accepted from now on."""

    @property
    def url(self) -> str:
        """Where it answers."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until told to stop; `started` is called when requests are answered."""
        self._uvicorn.when_started = started
        if threading.current_thread() is threading.main_thread():  # the process is the server's
            gc.collect()
            gc.freeze()  # modules stay: looking through them for garbage would stop all requests
            gc.set_threshold(GARBAGE)
        with self._socket:
            self._uvicorn.run(sockets=[self._socket])
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take no more requests, and end those that were accepted."""
        self._uvicorn.should_exit = True

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._in_thread, name="server", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *problem: Any) -> None:
        self.stop()
        assert self._thread is not None
        self._thread.join()

    def _in_thread(self) -> None:
        try:
            self.run(self._started.set)
        except BaseException as error:  # told in the thread that started it
            self._failure = error
        finally:
            self._started.set()


class Server(Http):
    """A service on its ports, HTTP and gRPC.

    `with Server(service, port=0) as server: … server.url`. `posts` are paths of one's own, such as
    /v1/embeddings, each with a function from the JSON of a request to its answer's.
    """

    def __init__(
        self,
        service: Service,
        *,
        tokens: Tokens | None = None,
        host: str = "127.0.0.1",
        port: int = 8000,
        grpc_port: int | None = 8001,
        watch: bool = False,
        posts: Mapping[str, Post] | None = None,
    ) -> None:
        self.service = service
        self.grpc_port = grpc_port
        self._watch = watch
        self._tokens = tokens or Tokens()
        app = application(service, self._tokens, self._lifespan, posts or {})
        super().__init__(app, service.limits, host, port)

    def _stopping(self) -> None:
        self.service.stopping = True

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        """What runs beside the HTTP server; it is stopped after the last HTTP request ended."""
        async with running(self.service, self._tokens, self._watch):
            rpc = None
            if self.grpc_port is not None:
                rpc = Rpc(self.service, self._tokens)
                try:
                    self.grpc_port = await rpc.start(self._host, self.grpc_port)
                except SuperposeError as error:  # told by `run`; uvicorn would print where it was
                    self._failure = error
                    self.stop()
            try:
                yield
            finally:
                if rpc is not None:
                    await rpc.stop(self.service.limits.drain_seconds)


@asynccontextmanager
async def running(service: Service, tokens: Tokens, watch: bool) -> AsyncIterator[None]:
    """Run batches, tell of traffic, and follow changes of the file and of other processes."""

    async def every(seconds: float, look: Callable[[], bool]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await service.look(look)

    repository = service.repository
    service.batcher.start()
    beside = [asyncio.create_task(service.tell_every_second())]
    if watch:
        beside.append(asyncio.create_task(every(WATCH, repository.reload_if_changed)))
    if tokens.control:
        repository.join()
        beside.append(asyncio.create_task(every(FOLLOW, repository.follow)))
    try:
        yield
    finally:
        for task in beside:
            task.cancel()
        await service.batcher.close()
        repository.replicas.leave()


class _Uvicorn(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, stopping: Callable[[], None], read_seconds: float
    ) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._read_seconds = read_seconds
        self._ending: asyncio.Task[None] | None = None
        self.when_started: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As it was, and tell."""
        await super().startup(sockets)
        late = end_late(self.server_state.connections, self._read_seconds)
        self._ending = asyncio.create_task(late)
        if not self.should_exit:
            self.when_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As it was; the server is not ready from now on."""
        self._stopping()
        await super().shutdown(sockets)
        if self._ending is not None:
            self._ending.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A drained stop is a good end: the signal is not raised again after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if sys.platform == "win32":  # its event loop takes no signals
            with super().capture_signals():
                yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.socket(family)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise SuperposeError(f"{host}:{port} cannot be listened on: {error.strerror}") from error
    return made
