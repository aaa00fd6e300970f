"""The command `kvweave serve`: a core, the application over it, and a server around both."""

import signal
import threading
from collections.abc import Callable
from typing import Annotated, cast

import typer
import uvicorn
from fastapi import FastAPI, Request
from starlette.types import ASGIApp

from service.api.app import Extension, create_app
from service.api.state import core_of
from service.composition import compose_core
from service.core import Core
from service.openai.errors import as_openai
from service.openai.routes import PREFIXES, router
from service.settings import Settings, SettingsError, load_settings
from service.telemetry.logs import setup
from service.telemetry.middleware import TelemetryMiddleware

DRAIN_S = 30  # for requests that run when the service is told to stop
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    host: Annotated[str, typer.Option(help="Address to bind; KVWEAVE_HOST by default.", show_default=False)] = "",
    *,
    port: Annotated[int, typer.Option(help="Port to bind; KVWEAVE_PORT by default.", show_default=False)] = -1,
    store: Annotated[
        str, typer.Option("--store", help="URL of the store; KVWEAVE_STORE by default.", show_default=False)
    ] = "",
) -> None:
    """Run the service. The first start leaves an admin key in the data folder, in admin.key.

    Example: KVWEAVE_DATA=/var/lib/kvweave kvweave serve --port 8000
    """
    settings = load_settings()
    given: dict[str, object] = {"host": host or settings.host, "port": settings.port if port < 0 else port}
    settings = settings.model_copy(update={**given, **({"store": store} if store else {})})
    if not settings.auth and settings.host not in LOOPBACK:
        raise SettingsError(
            f"host (KVWEAVE_HOST): without keys the service binds to loopback only, not to {settings.host}: "
            "switch KVWEAVE_AUTH on, or bind 127.0.0.1"
        )
    setup(settings.log_level, settings.log_style)
    core = compose_core(settings)
    server = uvicorn.Server(_config(core, settings))
    threading.Thread(target=_stop_when_failed, args=(core, server), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: _stop(server))
    try:
        server.run()
    finally:
        core.close()
    if core.failed.is_set():
        raise SettingsError(core.not_ready() or "the service did not start")


def application(make: Callable[[], Core]) -> FastAPI:
    """All interfaces over a core that is made when the application starts, and closed when it ends."""

    def of(request: Request) -> Core:
        return core_of(cast(FastAPI, request.app))

    return create_app(make, extensions=[Extension(router(of), dict.fromkeys(PREFIXES, as_openai))])


def observed(core: Core) -> ASGIApp:
    """The application with its lines, measures and traces around it."""
    return TelemetryMiddleware(application(lambda: core), metrics=core.metrics, tracer=core.tracer)


def _config(core: Core, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        observed(core),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )


def _stop(server: uvicorn.Server) -> None:
    """Also what the server's own last signal meets, so that a service that ended in order exits with 0."""
    server.should_exit = True


def _stop_when_failed(core: Core, server: uvicorn.Server) -> None:
    core.failed.wait()
    _stop(server)
