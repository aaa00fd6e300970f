"""The command `kvweave serve`: a core, the application over it, and a server around both."""

import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer
import uvicorn

from service.settings import Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from service.core import Core

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
    from service.composition import compose_core
    from service.telemetry.logs import setup

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


def _config(core: "Core", settings: Settings) -> uvicorn.Config:
    from service.application import observed

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


def _stop_when_failed(core: "Core", server: uvicorn.Server) -> None:
    core.failed.wait()
    _stop(server)
