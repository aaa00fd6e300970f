"""The connections of the synchronous client: what is read or written ends with its call, or when another thread says.

HTTPX bounds each read on its own, and shows a connection only once there is an answer. It has no public way in, so
this file alone reaches behind it. A transport of another kind stays as it is: bounded read by read.
"""

import math
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import ParamSpec

import httpcore
import httpx

from kvweave_client.course import Course

P = ParamSpec("P")


class Wire:
    """What one call reads and writes on. `cut` ends that from any thread, at whatever stage the call is."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self._lock = threading.Lock()
        self._stream: httpcore.NetworkStream | None = None

    def cut(self) -> None:
        """Ends the call: the read or write that waits fails now, and those that follow at once."""
        with self._lock:
            self.course.cancelled.set()
            if self._stream is not None:
                _shut(self._stream)

    def pause(self) -> None:
        """Wait until the next try, but no longer than until it is cut."""
        self.course.cancelled.wait(self.course.pause_s)
        self.course.check_cancelled()

    def timeout(self, timeout: httpx.Timeout) -> httpx.Timeout:
        """A timeout, known as that of this call."""
        bound = Bound(math.inf if timeout.read is None else timeout.read)
        bound.wire = self
        return httpx.Timeout(connect=timeout.connect, pool=timeout.pool, read=bound, write=bound)

    @contextmanager
    def on(self, stream: httpcore.NetworkStream, seconds: float) -> Generator[float]:
        """Takes a connection for one read or write, and for no longer. Before and after that it serves others."""
        with self._lock:
            if self.course.cancelled.is_set():
                raise httpcore.ReadError("cut off on this side")
            self._stream = stream
        try:
            yield min(seconds, self.course.left_s)
        finally:
            with self._lock:
                self._stream = None


class Bound(float):
    """How long a read or write may take, and for which call: it is handed through HTTPX as the number that it is."""

    wire: Wire


class Wired(httpcore.NetworkStream):
    """A connection that knows the call that it serves, from its first byte on."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self.close = stream.close
        self.get_extra_info = stream.get_extra_info
        self.start_tls = _wired(stream.start_tls)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Reads some bytes."""
        with _bounded(self._stream, timeout) as seconds:
            return self._stream.read(max_bytes, seconds)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Writes all of the bytes."""
        with _bounded(self._stream, timeout) as seconds:
            self._stream.write(buffer, seconds)


class Wiring(httpcore.NetworkBackend):
    """Connects as another backend does."""

    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self.connect_tcp = _wired(backend.connect_tcp)
        self.connect_unix_socket = _wired(backend.connect_unix_socket)
        self.sleep = backend.sleep


def _wired(connect: Callable[P, httpcore.NetworkStream]) -> Callable[P, httpcore.NetworkStream]:
    """What connects in the same way, by a connection that knows its call."""

    def connected(*args: P.args, **kwargs: P.kwargs) -> httpcore.NetworkStream:
        return Wired(connect(*args, **kwargs))

    return connected


def _bounded(stream: httpcore.NetworkStream, timeout: float | None) -> AbstractContextManager[float | None]:
    """How long one read or write may take: of a call's own, until the end of that call."""
    return timeout.wire.on(stream, timeout) if isinstance(timeout, Bound) else nullcontext(timeout)


def wire(http: httpx.Client) -> None:
    """Let the calls of this client be cut. In HTTP/2 many calls share a connection: such a client stays as it is."""
    for transport in (http._transport, *http._mounts.values()):  # pyright: ignore[reportPrivateUsage]
        pool = getattr(transport, "_pool", None)
        inside = vars(pool) if isinstance(pool, httpcore.ConnectionPool) else {}
        backend = inside.get("_network_backend")
        if backend is not None and inside.get("_http2") is False and not isinstance(backend, Wiring):
            inside["_network_backend"] = Wiring(backend)


def _shut(stream: httpcore.NetworkStream) -> None:
    opened = stream.get_extra_info("socket")
    if isinstance(opened, socket.socket):
        with suppress(OSError):
            socket.socket.shutdown(opened, socket.SHUT_RDWR)  # of TLS too, whose own would wait for the other side
