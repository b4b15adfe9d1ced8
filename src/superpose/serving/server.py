"""The server: HTTP and gRPC in one event loop, from start to drained stop."""

import asyncio
import gc
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Self

import uvicorn

from superpose import SuperposeError
from superpose.serving.connection import Connection
from superpose.serving.rest import Application, Post
from superpose.serving.rpc import Rpc
from superpose.serving.service import Service
from superpose.serving.tokens import Tokens

WATCH_SECONDS = 1.0
MAX_CONNECTIONS = 4096
GC_THRESHOLD = 10_000  # objects; Python's 700 are those of a few requests


class Server:
    """A service on its ports; port 0 takes any free one, `grpc_port=None` turns gRPC off.

    `run` serves until SIGTERM or SIGINT, then finishes accepted requests. As a context manager,
    `with Server(service, port=0) as server: … server.url`, it serves in a thread. With `watch`, the
    file is loaded again when it changes. `posts` are further paths, such as /v1/embeddings, each
    with a function from the JSON of a request to the JSON of its answer.
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
        self._tokens = tokens or Tokens()
        self._host = host
        self._watch = watch
        self._socket = _listening(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._when_started: Callable[[], None] = lambda: None
        self._failure: BaseException | None = None
        config = uvicorn.Config(
            Application(service, self._tokens, self._lifespan, posts),
            http=partial(Connection, read_seconds=service.limits.read_seconds),  # type: ignore[arg-type]
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=int(service.limits.drain_seconds),
        )
        self._uvicorn = _Uvicorn(config, service)

    @property
    def url(self) -> str:
        """The address for HTTP."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until told to stop; `started` is called when requests are answered.

        Raises `SuperposeError` if the port for gRPC is taken.
        """
        self._when_started = started
        if threading.current_thread() is threading.main_thread():  # the process is the server's
            gc.collect()
            gc.freeze()  # a search of all modules for garbage would hold up all requests
            gc.set_threshold(GC_THRESHOLD)
        with self._socket:
            self._uvicorn.run(sockets=[self._socket])
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Accept no more requests, and finish those that were accepted."""
        self._uvicorn.should_exit = True

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run_in_thread, name="server", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        assert self._thread is not None
        self._thread.join()

    def _run_in_thread(self) -> None:
        try:
            self.run(self._started.set)
        except BaseException as error:  # raised in the thread that started the server
            self._failure = error
        finally:
            self._started.set()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        """Run batches and gRPC; both end after the last HTTP request."""
        drain_seconds = self.service.limits.drain_seconds
        async with running(self.service, WATCH_SECONDS if self._watch else None):
            rpc = None
            if self.grpc_port is not None:
                rpc = Rpc(self.service, self._tokens)
                try:
                    self.grpc_port = await rpc.start(self._host, self.grpc_port)
                except SuperposeError as error:  # raised by `run`: uvicorn would print a traceback
                    self._failure = error
                    self.stop()
            if self._failure is None:
                self._when_started()  # the socket listens already: requests wait in its backlog
            try:
                yield
            finally:
                if rpc is not None:
                    await rpc.stop(drain_seconds)


@asynccontextmanager
async def running(service: Service, watch_seconds: float | None = None) -> AsyncIterator[None]:
    """Run a service's batches and, if asked for, the watch of its file."""
    service.batcher.start()
    watch = None if watch_seconds is None else asyncio.create_task(service.watch(watch_seconds))
    try:
        yield
    finally:
        if watch is not None:
            watch.cancel()
        await service.batcher.close()


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stopping = True
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal without raising it again afterwards: a drained stop exits with 0."""
        in_main = threading.current_thread() is threading.main_thread()
        signals = (signal.SIGTERM, signal.SIGINT) if in_main else ()
        before = [(number, signal.signal(number, self.handle_exit)) for number in signals]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)


def _listening(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(MAX_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise SuperposeError(f"{host}:{port} cannot be listened on: {error.strerror}") from error
    return listener
