"""The server on Ray Serve: replicas behind Ray's own ingress, health checks and restarts."""

from collections.abc import Callable
from typing import Any

from superpose import SuperposeError
from superpose.serving.rest import Application
from superpose.serving.server import running
from superpose.serving.service import Limits, Service
from superpose.serving.tokens import Tokens

MAX_REQUESTS = 512  # of a replica at a time; its own queue is counted in rows


def ray_deployment(make_service: Callable[[], Service], *, tokens: Tokens | None = None) -> Any:
    """Return a deployment of Ray Serve; `make_service` runs in each replica.

    Set the number of replicas and what each needs with Ray's own options, as in
    `ray_deployment(make_service).options(num_replicas=4).bind()`. Replicas do not agree with each
    other, so there are no control calls: a new file needs a rolling restart.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise SuperposeError('Ray is not installed: pip install "superpose[ray]"') from error
    clients = Tokens(clients=tokens.clients if tokens else ())

    def build() -> Application:
        service = make_service()
        return Application(service, clients, lambda: running(service))

    return serve.deployment(serve.ingress(build)()).options(
        name="superpose",
        max_ongoing_requests=MAX_REQUESTS,
        graceful_shutdown_timeout_s=Limits.drain_seconds,
    )
