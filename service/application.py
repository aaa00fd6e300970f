"""REST and OpenAI's interface over one core, as one application, with telemetry around it."""

from collections.abc import Callable

from fastapi import FastAPI
from starlette.types import ASGIApp

from service.api.app import Extension, create_app
from service.app.core import Core
from service.openai.errors import as_openai
from service.openai.routes import PREFIXES, router
from service.telemetry.middleware import TelemetryMiddleware


def application(make: Callable[[], Core]) -> FastAPI:
    """All interfaces over a core that is made when the application starts, and closed when it ends."""
    return create_app(make, extensions=[Extension(router(), dict.fromkeys(PREFIXES, as_openai))])


def observed(core: Core) -> ASGIApp:
    """The application with its lines, measures and traces around it."""
    return TelemetryMiddleware(application(lambda: core), metrics=core.metrics, tracer=core.tracer)
