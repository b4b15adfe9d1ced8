"""The server on Ray: replicas on one machine or many, behind one door.

A replica is the whole application, with a batcher of its own. The door is this process: it reads
requests, gives each to a replica, and gives it to another one if the replica dies. Replicas change
together as processes at one state directory do; on several machines it is on a shared file system.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from superpose.errors import SuperposeError
from superpose.serving.connection import unless_gone
from superpose.serving.http_body import Bodies, Headers, refused
from superpose.serving.request_error import RequestError
from superpose.serving.rest import application
from superpose.serving.server import Http, running
from superpose.serving.service import Limits, Service
from superpose.serving.tokens import Tokens

TRIES = 5  # replicas that a request is given to, one after the other: it may be what kills them
PAUSE = 0.25  # seconds after the first try, twice as many after the next: a replica has to start
ONGOING = 512  # requests that a replica works on at a time; its own queue is counted in rows
Told = tuple[int, Headers, bytes]
"""Status, headers and body of an answer."""


@dataclass(frozen=True)
class Scale:
    """How many replicas there are, and what each of them needs."""

    replicas: int = 2
    cpus: float = 1.0
    gpus: float = 0.0


class Replica:
    """One replica, an actor of Ray Serve."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, build: Callable[[], Service], tokens: Tokens, watch: bool
    ) -> None:
        service = build()
        self._app = application(service, tokens, _nothing, {})
        self._running = running(service, tokens, watch)
        await self._running.__aenter__()  # until the process ends

    async def answer(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: Headers,
        body: bytes,
    ) -> Told:
        """The answer of the application."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": unquote(path.decode("ascii", "replace")),
            "raw_path": path,
            "query_string": query,
            "headers": headers,
        }
        await self._app(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], list(sent[0]["headers"]), content


class Cluster(Http):
    """Replicas on Ray, and the door to them; `build` makes the service of a replica, there."""

    def __init__(
        self,
        build: Callable[[], Service],
        scale: Scale | None = None,
        *,
        limits: Limits | None = None,
        tokens: Tokens | None = None,
        host: str = "127.0.0.1",
        port: int = 8000,
        watch: bool = False,
        name: str = "superpose",
    ) -> None:
        self.name = name  # of the application on Ray
        self._limits = limits or Limits()
        self._bodies = Bodies(self._limits)
        self._ready = True
        arguments = (build, tokens or Tokens(), watch)
        self._handle = _deployed(name, arguments, scale or Scale(), self._limits.drain_seconds)
        app = Starlette(
            routes=[
                Route("/v2/health/live", self._live, methods=["GET"]),
                Route("/{path:path}", self._ask, methods=["GET", "POST"]),
            ],
            lifespan=self._lifespan,
        )
        super().__init__(app, self._limits, host, port)

    def _stopping(self) -> None:
        self._ready = False

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        from ray import serve

        try:
            yield
        finally:
            await asyncio.to_thread(serve.delete, self.name)

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ask(self, request: Request) -> Response:
        try:
            status, headers, content = await unless_gone(request.scope, self._told(request))
        except RequestError as refusal:
            return refused(refusal)
        except ClientDisconnect:
            return refused(RequestError(499, "the client is gone"))
        answer = Response(content, status)
        answer.raw_headers = headers
        return answer

    async def _told(self, request: Request) -> Told:
        """The answer of a replica, or of the next one if it dies; a change is asked for once."""
        from ray.exceptions import RayActorError

        scope = request.scope
        path: bytes = scope["raw_path"]
        if path == b"/v2/health/ready" and not self._ready:
            raise RequestError(503, "the server is stopping: ask another one")
        control = path.startswith(b"/v2/repository/models/")
        with self._bodies.held() as held:
            body = await held.read(scope, request.receive)
            for attempt in range(1 if control else TRIES):
                asked = self._handle.answer.remote(
                    scope["method"], path, scope["query_string"], scope["headers"], body
                )
                try:
                    return await asked
                except asyncio.CancelledError:
                    asked.cancel()
                    raise
                except RayActorError:
                    await asyncio.sleep(PAUSE * 2**attempt)
        if control:
            raise RequestError(
                503, "the replica that was asked died: look whether the change was made"
            )
        raise RequestError(503, f"{TRIES} replicas died while they were asked: try again later", 5)


@asynccontextmanager
async def _nothing(app: Any) -> AsyncIterator[None]:
    """The replica itself starts and stops what runs beside the application."""
    yield


def _deployed(name: str, arguments: tuple[Any, ...], scale: Scale, drain: float) -> Any:
    """The handle of replicas that are started, on the cluster that this process is connected to."""
    from ray import serve

    deployment = serve.deployment(Replica).options(
        name="replica",
        num_replicas=scale.replicas,
        max_ongoing_requests=ONGOING,
        ray_actor_options={"num_cpus": scale.cpus, "num_gpus": scale.gpus},
        graceful_shutdown_timeout_s=drain,
        health_check_period_s=1,
    )
    serve.start(http_options={"location": "NoServer"})
    try:
        return serve.run(deployment.bind(*arguments), name=name, route_prefix=None)
    except RuntimeError as error:
        told = serve.status().applications[name].deployments["replica"].message
        serve.delete(name)
        lines = [line.strip() for line in told.splitlines() if "Error" in line] or [str(error)]
        raise SuperposeError(f"the replicas cannot start: {lines[-1]}") from error
