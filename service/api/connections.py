"""Timeouts of slow clients, keep-alive, the most connections and which one goes then, the orderly end of a server.

What waits is the head of a request that does not come, and a response that is not read. Who came before the service
was told to stop is answered. Knows no request's meaning.
"""

import asyncio
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

CONNECTIONS = 4096
LAST_S = 0.5  # for a request that is on its way to a service that stops: whoever sent it may have no other to ask
UNSENT_BYTES = 1 << 17  # more of a response the system takes only as the client reads, so that its pace shows
_CLOSE = (b"connection", b"close")


def open_more_files() -> None:
    """Let this process have twice the connections' number, where the system grants it: many begin with 1,024 in all."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS if most == resource.RLIM_INFINITY else min(most, 2 * CONNECTIONS)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _most_connections() -> int:
    """Half of the files that the process may open at most: the store and the catalogs need theirs."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if files == resource.RLIM_INFINITY else min(CONNECTIONS, files // 2)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may keep a connection waiting, and how many connections there are.

    Who reads goes on, `least_bytes` in each `seconds`: less than the server's buffer holds when it makes a writer wait.
    Between requests it may wait longer than a balancer does, most of which close after 60: a balancer whose connection
    the service closes may have sent a request already, which is lost.
    """

    seconds: float = 20.0
    kept_s: int = 75
    least_bytes: int = 1 << 15
    connections: int = 0  # as many as the process may have

    @property
    def most(self) -> int:
        """How many connections there may be at once."""
        return self.connections or _most_connections()


class PatientConnection(H11Protocol):
    """A connection that is cut when its client is too slow. A new one in excess cuts the one that waits the longest.

    Where all come from one proxy, or one host, nobody is shut out by those who connect and say nothing.
    """

    patience: ClassVar[Patience] = Patience()
    tell: ClassVar[Callable[[str], None]]
    _waiting: asyncio.TimerHandle | None = None
    _since = 0.0
    _unread = 0
    _is_between = False  # requests: of the next one nothing came yet
    _is_last = False  # of this connection's requests, the one that comes next

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See `asyncio.Protocol`; so are all that follow."""
        super().connection_made(transport)
        connection = cast("socket.socket | None", transport.get_extra_info("socket"))
        if connection is not None:
            with suppress(OSError):  # a socket of another kind
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._watch()
        if len(self.connections) > self.patience.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_between:
            self._is_between = False
            self._rest()
        super().data_received(data)
        self._watch()
        if self._is_last or self._has_two_lengths:
            self._tell_last()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._is_between = self._is_idle and not self.conn.trailing_data[0]
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def shutdown(self) -> None:
        self._is_last = True
        self._tell_last()
        self.loop.call_later(LAST_S, self._close)

    def _tell_last(self) -> None:
        """Let the response say that none follows it, where it has not begun."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and _CLOSE not in cycle.default_headers:
            cycle.default_headers = [*cycle.default_headers, _CLOSE]

    def _close(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    @property
    def _is_idle(self) -> bool:
        """Whether there is no request to answer."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    @property
    def _has_two_lengths(self) -> bool:
        """Whether the request says its length in both ways: a proxy may believe the other, and see another next one."""
        headers = cast("list[tuple[bytes, bytes]] | None", self.headers) or []
        return {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}

    def _watch(self) -> None:
        """Begin to count where the client's turn begins, and end where it ends. A part of a head is no end."""
        if not self._is_idle and not self.flow.write_paused:
            self._rest()
        elif self._waiting is None:
            self._wait()

    def _wait(self) -> None:
        self._since, self._unread = self.loop.time(), self.transport.get_write_buffer_size()
        self._waiting = self.loop.call_later(self.patience.seconds, self._look)

    def _rest(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _look(self) -> None:
        left = self.transport.get_write_buffer_size()
        if self._is_between and not left:
            return  # it waits on, until uvicorn ends it
        if self._unread - left >= self.patience.least_bytes:
            self._wait()
        else:
            self._cut("slow_reader" if self._unread else "slow_head")

    def _make_room(self) -> None:
        every = (each for each in self.connections if isinstance(each, PatientConnection))
        waiting = [each for each in every if each._waiting is not None]
        if waiting:
            min(waiting, key=lambda each: each._since)._cut("connections")

    def _cut(self, reason: str) -> None:
        """Take the connection back at once: an orderly end would wait for the client to read."""
        self._rest()
        type(self).tell(reason)
        self.transport.abort()


def patient(patience: Patience, *, tell: Callable[[str], None]) -> type[PatientConnection]:
    """The kind of connection for a server. `tell` gets the reason of each cut."""

    class Configured(PatientConnection):
        pass

    Configured.patience = patience
    Configured.tell = staticmethod(tell)
    return Configured


class OrderlyServer(uvicorn.Server):
    """A server that answers those who came before it was told to stop, and whom it had not yet accepted.

    A listener that closes resets them, and a balancer that was refused by another replica before has none left to ask.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        late = (self._take_in(each) for listener in sockets or [] for each in _accepted(listener))
        taken = asyncio.gather(*late)
        await super().shutdown(sockets)  # closes the listeners before anything else can run
        await taken

    async def _take_in(self, accepted: socket.socket) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        kind = cast("type[PatientConnection]", config.http_protocol_class)

        def made() -> PatientConnection:
            return kind(config, self.server_state, self.lifespan.state)

        with suppress(OSError):  # whoever has gone already
            _, connection = await loop.connect_accepted_socket(made, accepted)
            connection.shutdown()


def _accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Whoever waits to be accepted."""
    with suppress(OSError):  # nobody, or no more files
        while True:
            yield listener.accept()[0]
