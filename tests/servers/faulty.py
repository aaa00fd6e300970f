"""An HTTP/1.1 proxy on loopback that misbehaves as a test tells it to, and counts the requests that pass.

It knows HTTP alone. It forwards the request line, the Host header and the body as the client sent them, because a
signature covers them: the server behind verifies one made for the proxy's address, and Ceph's gateway accepts it as
long as buckets are addressed by path. Bodies are held in memory whole.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from threading import Lock, Thread
from urllib.parse import urlsplit

from tests.servers.faults import SILENCE, Answer, Ending, Fault, refusal

UPSTREAM_TIMEOUT_S = 30.0
NOT_COPIED = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "expect"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request as seen by the proxy. `status` is the one sent to the client: None where it got no status line."""

    method: str
    path: str
    query: str
    range: str | None
    status: int | None = None


Matches = Callable[[Request], bool]


class FaultyProxy:
    """Open between `with faulty_proxy(endpoint)` and its end. Every method may be called from any thread.

    A request takes the next fault of the oldest script that matches it and is not used up; else that of the latest
    `always` that matches; else it passes. `requests` holds each request once, in the order of the answers, and before
    its client sees the answer. A request whose client left within the body is neither forwarded nor recorded.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"the proxy speaks plain HTTP, got {upstream!r}")
        self.upstream = (parts.hostname, parts.port or 80)
        self._lock = Lock()
        self._scripts: list[tuple[Matches, Iterator[Fault]]] = []
        self._standing: list[tuple[Matches, Fault]] = []
        self._requests: list[Request] = []
        self._server = _Server(self)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[Request]:
        with self._lock:
            return list(self._requests)

    def script(self, faults: Sequence[Fault], where: Matches = lambda _: True) -> None:
        """The next matching requests get these faults, one each."""
        with self._lock:
            self._scripts.append((where, iter(tuple(faults))))

    def always(self, fault: Fault, where: Matches = lambda _: True) -> None:
        with self._lock:
            self._standing.insert(0, (where, fault))

    def clear(self) -> None:
        """Forgets scripts, standing faults and recorded requests. Requests that hang go on hanging."""
        with self._lock:
            self._scripts.clear()
            self._standing.clear()
            self._requests.clear()

    def take_fault(self, request: Request) -> Fault:
        with self._lock:
            for matches, faults in self._scripts:
                if matches(request) and (fault := next(faults, None)) is not None:
                    return fault
            return next((fault for matches, fault in self._standing if matches(request)), Fault.none())

    def record(self, request: Request) -> None:
        with self._lock:
            self._requests.append(request)

    @contextmanager
    def serving(self) -> Iterator[FaultyProxy]:
        thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="faulty-proxy")
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.close()


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """A proxy in front of `upstream`; at the end of the block its sockets are closed and its threads have ended."""
    with FaultyProxy(upstream).serving() as proxy:
        yield proxy


class _Server(ThreadingTCPServer):
    daemon_threads = False  # so that server_close joins the threads of the connections
    request_queue_size = 128

    def __init__(self, proxy: FaultyProxy) -> None:
        self.proxy = proxy
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Connection)

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up, or whose connection we reset, is what tests are about: no word about it."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def close(self) -> None:
        with self._lock:
            for connection in self._open:
                # Wakes the thread that reads from it, be it idle or hanging.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _exchange(self) -> None:
        parts = urlsplit(self.path)
        request = Request(self.command, parts.path, parts.query, self.headers["Range"])
        body = self._read_body()
        assert isinstance(self.server, _Server)
        proxy = self.server.proxy
        fault = proxy.take_fault(request)
        answer = fault.change(self._ask(proxy.upstream, body) if fault.reaches_server else SILENCE)
        proxy.record(replace(request, status=None if answer.is_silent else answer.status))
        if not answer.is_silent:
            self._send(answer)
        self._end(answer.ending)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _exchange

    def _read_body(self) -> bytes:
        if self.headers["Transfer-Encoding"] is None:
            length = int(self.headers["Content-Length"] or 0)
            body = self.rfile.read(length)
            if len(body) < length:
                raise ConnectionAbortedError("the client left within its body; the server must not see half of it")
            return body
        chunks: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(chunks)

    def _ask(self, upstream: tuple[str, int], body: bytes) -> Answer:
        connection = HTTPConnection(*upstream, timeout=UPSTREAM_TIMEOUT_S)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in NOT_COPIED:
                    connection.putheader(name, value)
            if body or self.command in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            return _answer_of(connection.getresponse())
        except (OSError, HTTPException):
            return refusal(502)
        finally:
            connection.close()

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", answer.length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _end(self, ending: Ending) -> None:
        self.close_connection = ending is not Ending.KEEP
        if ending is Ending.HANG:
            while self.connection.recv(4096):
                pass
        if ending is Ending.RESET:
            # Lingering for no time makes close send a reset instead of an orderly end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Tests ask `requests` instead."""


def _answer_of(response: HTTPResponse) -> Answer:
    body = response.read()
    headers = tuple((name, value) for name, value in response.getheaders() if name.lower() not in NOT_COPIED)
    # A HEAD answer has a length and no body; a chunked one has a body and no length.
    return Answer(response.status, headers, body, response.getheader("Content-Length") or str(len(body)))
