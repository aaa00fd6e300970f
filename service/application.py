"""All interfaces over one core, as one application."""

from collections.abc import Callable
from typing import cast

from fastapi import FastAPI, Request
from starlette.types import ASGIApp

from service.api.app import Extension, create_app
from service.api.guards import core_of
from service.app.core import Core
from service.openai.errors import as_openai
from service.openai.routes import PREFIXES, router
from service.telemetry.middleware import TelemetryMiddleware


def application(make: Callable[[], Core]) -> FastAPI:
    """All interfaces over a core that is made when the application starts, and closed when it ends."""

    def core_of_request(request: Request) -> Core:
        return core_of(cast(FastAPI, request.app))

    return create_app(make, extensions=[Extension(router(core_of_request), dict.fromkeys(PREFIXES, as_openai))])


def observed(core: Core) -> ASGIApp:
    """The application with its lines, measures and traces around it."""
    return TelemetryMiddleware(application(lambda: core), metrics=core.metrics, tracer=core.tracer)
