"""The service's health, for whoever watches over it: whether it lives, whether it is ready, and its numbers."""

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request, Response

from service.api.caller import By
from service.api.core_of import core_of
from service.bodies.stats import Health
from service.errors import Unavailable

_THREADS = CapacityLimiter(4)  # of their own: handlers that wait can take all of the framework's


async def healthz() -> Health:
    """The process lives."""
    return Health(status="ok")


async def readyz(request: Request) -> Health:
    """The model is loaded and the store answers."""
    reason = await run_sync(core_of(request.app).not_ready, limiter=_THREADS)
    if reason is not None:
        raise Unavailable(reason)
    return Health(status="ready")


async def metrics(by: By) -> Response:
    """Everything that the service counts, in the text format of Prometheus."""
    body, media = await run_sync(by.core.metrics.render, limiter=_THREADS)
    return Response(body, media_type=media)
