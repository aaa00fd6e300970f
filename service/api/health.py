"""The service's health, for whoever watches over it: whether it lives, whether it is ready, and its numbers."""

from fastapi import Request, Response

from service.api.caller import By
from service.api.core_of import core_of
from service.bodies.stats import Health
from service.errors import Unavailable


def healthz() -> Health:
    """The process lives."""
    return Health(status="ok")


def readyz(request: Request) -> Health:
    """The model is loaded and the store answers."""
    reason = core_of(request.app).not_ready()
    if reason is not None:
        raise Unavailable(reason)
    return Health(status="ready")


def metrics(by: By) -> Response:
    """Everything that the service counts, in the text format of Prometheus."""
    body, media = by.core.metrics.render()
    return Response(body, media_type=media)
