"""The command `kvweave serve`: binds, greets, stops; loopback alone without keys; uvicorn, gc and threads set up."""

import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.console import LOOPBACK, address, console
from service.commands.options import ModelName, StoreUrl

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from service.api.connections import Patience
    from service.app.core import Core
    from service.settings import Settings

log = logging.getLogger(__name__)

SELDOM = (700, 10, 1000)  # when garbage is looked for: among all that came since, which stops everybody, hardly ever
SWITCH_S = 0.0002  # until another thread computes: a loop that shares with many gets its turn 25 times as soon

Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address to bind; KVWEAVE_HOST by default.", show_default=False)
]
Port = Annotated[
    int | None,
    typer.Option(metavar="N", help="Port to bind; KVWEAVE_PORT by default.", min=0, max=65535, show_default=False),
]
Data = Annotated[
    str,
    typer.Option(metavar="PLACE", help="Folder, or PostgreSQL's URL; KVWEAVE_DATA by default.", show_default=False),
]


def serve(host: Host = "", *, port: Port = None, model: ModelName = "", data: Data = "", store: StoreUrl = "") -> None:
    """Run the service: REST, OpenAI's chat endpoint and a console page over your documents.

    The first start leaves an admin key in the data folder, in the file admin.key. Ctrl-C stops it: what runs is
    finished, what waits goes on at the next start.

    Examples:
      kvweave serve
      kvweave serve --port 8080 --data ./my-data
      kvweave serve --model ./my-model --host 0.0.0.0
    """
    from service.settings import SettingsError, load_settings

    given = {"host": host, "port": port, "model": model, "data": data, "store": store}
    settings = load_settings(**{name: value for name, value in given.items() if value not in ("", None)})
    if not settings.auth and settings.host not in LOOPBACK:
        raise SettingsError(
            f"host (KVWEAVE_HOST): without keys the service binds to loopback only, not to {settings.host}: "
            "switch KVWEAVE_AUTH on, or bind 127.0.0.1"
        )
    with bound(settings.host, settings.port) as sockets:
        _run(settings, sockets)


def _run(settings: "Settings", sockets: list[socket.socket]) -> None:
    from blend.run.context import SPARE
    from service.api.connections import open_more_files
    from service.app.composition import compose_core
    from service.app.give_back_memory import give_back_memory, keep_freed_memory
    from service.application import observed
    from service.settings import SettingsError
    from service.telemetry.logs import fields, setup_logs

    setup_logs(settings.log_level, settings.log_style)
    keep_freed_memory()
    with ExitStack() as stack:
        core = compose_core(settings)
        stack.callback(core.close)
        server = server_over(observed(core), tell=core.metrics.refused, stop_s=settings.stop_s)
        core.is_stopping = lambda: server.should_exit
        open_more_files()
        sys.setswitchinterval(SWITCH_S)
        threading.Thread(target=_stop_when_failed, args=(core, server), daemon=True).start()
        threading.Thread(target=_settle_when_loaded, args=[core], daemon=True).start()
        stopped = threading.Event()
        stack.callback(stopped.set)
        keeping = {"is_calm": lambda: core.places.taken == 0, "let_go": SPARE.let_go, "rest": core.rest}
        threading.Thread(target=give_back_memory, args=[stopped], kwargs=keeping, daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, lambda number, frame: _stop(server))
        port = sockets[0].getsockname()[1]
        _greet(settings, port=port, issue=core.link.issue)
        log.info("listening", extra=fields(address=address(settings.host, port), search=_search(settings)))
        server.run(sockets)
    if core.failed.is_set():
        raise SettingsError(core.not_ready() or "the service did not start")


@contextmanager
def bound(host: str, port: int) -> Generator[list[socket.socket]]:
    """Binds the address before anything is opened or loaded, to tell of a taken port at once. Nobody can connect."""
    with ExitStack() as stack:
        yield [stack.enter_context(each) for each in _sockets(host, port)]


def _sockets(host: str, port: int) -> list[socket.socket]:
    from service.settings import SettingsError

    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"host (KVWEAVE_HOST): {host!r} is no address of this machine: {error}") from None
    places = {(family, place[:2]): place for family, _, _, _, place in found}
    return [_socket(family, place) for (family, _), place in places.items()]


def _socket(family: int, place: tuple[object, ...]) -> socket.socket:
    from service.settings import SettingsError

    # With its protocol named, or asyncio would let Nagle's algorithm hold answers back for 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.bind(place)
    except OSError as error:
        found.close()
        raise SettingsError(
            f"{place[0]} port {place[1]} cannot be bound ({error.strerror}): "
            "stop what listens there, or choose another --port or --host"
        ) from None
    return found


def server_over(
    app: "ASGIApp", *, tell: Callable[[str], None], stop_s: int, patience: "Patience | None" = None
) -> "uvicorn.Server":
    """The server of an application. `tell` gets the limit at which a connection was cut."""
    import uvicorn

    from service.api.connections import OrderlyServer, Patience, patient
    from service.api.limits import HEAD_BYTES

    patience = patience or Patience()
    return OrderlyServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            http=patient(patience, tell=tell),
            timeout_keep_alive=patience.kept_s,
            ws="none",  # an upgraded connection would have no limits
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_graceful_shutdown=stop_s,
        )
    )


def _greet(settings: "Settings", *, port: int, issue: Callable[[], str]) -> None:
    """Says on a terminal where to look, and with what key. A log has no use for it, and is not told of the link."""
    from service.truth.databases import ADMIN_KEY

    screen = console(stderr=True)
    if not screen.is_terminal:
        return
    place, key = address(settings.host, port), settings.data / ADMIN_KEY
    typer.echo(f"\nkvweave serves {settings.model}; Ctrl-C stops it.\n", err=True)
    has_link = settings.auth and key.is_file() and settings.host in (*LOOPBACK, "0.0.0.0", "::")
    typer.echo(f"  console page   {place}/{f'#once={issue()}' if has_link else ''}", err=True)
    if has_link:
        typer.echo("                 (the link has the key for one browser, once, within ten minutes)", err=True)
    typer.echo(f"  API            {place}/docs", err=True)
    typer.echo(f"  search         {_search(settings)}", err=True)
    if not settings.auth:
        typer.echo("  key            none is needed (KVWEAVE_AUTH is off)\n", err=True)
    elif key.is_file():
        typer.echo(f"  admin key      in {key}\n", err=True)
    else:
        typer.echo("  key            kvweave keys create\n", err=True)


def _search(settings: "Settings") -> str:
    """How documents are found, and what would add to it."""
    from service.app.composition import embedder_source
    from service.settings import AUTO, NONE

    if settings.embedder == NONE:
        return f"by words alone; KVWEAVE_EMBEDDER={AUTO} adds meaning"
    named = embedder_source(settings) or settings.embedder
    return "by words alone; kvweave[embedder] adds meaning" if named == AUTO else f"by words and by meaning ({named})"


def _stop(server: "uvicorn.Server") -> None:
    """Stops the server. Its own last signal comes here too, so that a service that ended in order exits with 0."""
    server.should_exit = True


def _settle_when_loaded(core: "Core") -> None:
    """What is there for good is never again looked through for garbage, which stops all threads for 0.4 s.

    From now on the event loop goes before the threads that compute.
    """
    from service.answers.fair_turns import COMPUTES, LATER, lower_priority

    core.wait()
    for thread in threading.enumerate():
        if thread.name.startswith(("kvweave-engine", "kvweave-ingest")):
            lower_priority(COMPUTES if thread.name == "kvweave-engine" else LATER, of=thread)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)


def _stop_when_failed(core: "Core", server: "uvicorn.Server") -> None:
    core.failed.wait()
    _stop(server)
