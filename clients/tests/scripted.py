"""An HTTP server on loopback that answers as a script says, well or badly, one step for each request. Knows no path.

What is sent is made by `reply`, `opened` and `whole`; how it is sent, by `send`, `end`, `reset`, `hang`, `deaf` and
`drip`.
"""

import json
import socket
import ssl
import struct
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from email.parser import BytesParser
from threading import Condition, Event, Thread

WAIT_S = 30.0  # for what must come; only broken clients wait so long
JSON, EVENTS = "application/json", "text/event-stream"


@dataclass(frozen=True, slots=True)
class Heard:
    """A request as it came. Names of headers are in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Line:
    """The connection on which one request waits for its answer."""

    def __init__(self, connection: socket.socket, heard: Heard, *, closing: Event) -> None:
        self.connection = connection
        self.heard = heard
        self.closing = closing
        self.is_open = True

    def send(self, sent: bytes) -> None:
        """Sends this, all at once."""
        self.connection.sendall(sent)

    def wait_gone(self) -> None:
        """Waits until the client has left."""
        while self.connection.recv(65536):
            pass

    def close(self) -> None:
        """Ends the connection with this answer."""
        self.is_open = False


@dataclass(frozen=True, slots=True)
class Step:
    """What is done with one request, once its body is there. The first `keeps` bytes of that are held on to.

    `reads`: else it is done as soon as the head is there.
    """

    act: Callable[[Line], None]
    reads: bool = True
    keeps: int = 1 << 30

    def unread(self) -> "Step":
        """The same step, without reading the body."""
        return replace(self, reads=False)

    def forgetting(self) -> "Step":
        """The same step, without holding on to the body."""
        return replace(self, keeps=0)


class Scripted:
    """The server. Steps are taken in their order, whatever connection a request comes on."""

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        scheme = "http" if tls is None else "https"
        self.base_url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        self.requests: list[Heard] = []  # all that came whole, whatever became of them
        self.connections = 0
        self.errors: list[str] = []  # requests for which there was no step
        self._listening = listening
        self._tls = tls
        self._steps: list[Step] = []
        self._always: Step | None = None
        self._gone = 0
        self._changed = Condition()
        self._closing = Event()
        self._open: set[socket.socket] = set()
        self._threads: list[Thread] = []

    def script(self, *steps: Step) -> None:
        """What the next requests get, one after the other."""
        with self._changed:
            self._steps += steps

    def always(self, step: Step) -> None:
        """What all requests get for which there is no other step."""
        self._always = step

    def wait_heard(self, count: int) -> None:
        """Waits until so many requests have come."""
        self._wait(lambda: len(self.requests) >= count, f"{count} requests")

    def wait_gone(self, count: int = 1) -> None:
        """Waits until so many clients have left while their request waited."""
        self._wait(lambda: self._gone >= count, f"{count} clients that left")

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(is_so, WAIT_S), f"no {what} within {WAIT_S} s"

    def run(self) -> None:
        """Takes connections until it is closed."""
        while not self._closing.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(connection)
            self.connections += 1
            thread = Thread(target=self._serve, args=(connection,), name="scripted")
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """End all that is open. Nothing is taken any more."""
        for each in [*self._open]:
            with suppress(OSError):
                socket.socket.shutdown(each, socket.SHUT_RDWR)  # of TLS too, whose own would wait for its client
        for thread in self._threads:
            thread.join(WAIT_S)

    def refuse(self) -> None:
        """Take no more connections."""
        self._closing.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self._tls is None:
                self._converse(connection)
                return
            with self._tls.wrap_socket(connection, server_side=True) as wrapped:
                self._open.add(wrapped)
                self._converse(wrapped)

    def _converse(self, connection: socket.socket) -> None:
        received, is_open = b"", True
        while is_open:
            head, received = _until(connection, received, end=b"\r\n\r\n")
            if not head:
                return
            try:
                step, heard, received = self._heard(connection, head, received=received)
                self._remember(heard)
                line = Line(connection, heard, closing=self._closing)
                step.act(line)
                is_open = line.is_open
            except OSError:
                self._left()
                return

    def _heard(self, connection: socket.socket, head: bytes, *, received: bytes) -> tuple[Step, Heard, bytes]:
        first, _, rest = head.partition(b"\r\n")
        method, path, _ = first.decode("ascii").split(" ", 2)
        headers = {name.lower(): str(value) for name, value in BytesParser().parsebytes(rest).items()}
        with self._changed:
            step = self._steps.pop(0) if self._steps else self._always
        if step is None:
            self.errors.append(f"{method} {path}")
            step = send(reply({"detail": "the script is over"}, status=500))
        length = int(headers.get("content-length", "0")) if step.reads else 0
        body, left = bytearray(received[:length][: step.keeps]), length - len(received)
        while left > 0:
            piece = connection.recv(min(left, 65536))
            if not piece:
                raise ConnectionAbortedError
            body += piece[: step.keeps]
            left -= len(piece)
        return step, Heard(method, path, headers, bytes(body)), received[length:]

    def _remember(self, heard: Heard) -> None:
        with self._changed:
            self.requests.append(heard)
            self._changed.notify_all()

    def _left(self) -> None:
        with self._changed:
            self._gone += 1
            self._changed.notify_all()


@contextmanager
def scripted(tls: ssl.SSLContext | None = None) -> Generator[Scripted]:
    """A server that listens until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Scripted(listening, tls)
        thread = Thread(target=server.run, name="scripted")
        thread.start()
        try:
            yield server
        finally:
            server.refuse()
            thread.join(WAIT_S)
            server.close()


def reply(
    said: object = None, *, status: int = 200, kind: str = JSON, length: int | None = None, **headers: str
) -> bytes:
    """An answer with its length. What is no bytes is written as JSON; `length` may promise more than there is."""
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    told = {"Content-Type": kind, "Content-Length": str(len(body) if length is None else length), **headers}
    return _head(status, told) + body


def opened(*pieces: bytes | str, status: int = 200, kind: str = EVENTS, **headers: str) -> bytes:
    """An answer in chunks, whose end is missing."""
    chunks = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    told = {"Content-Type": kind, "Transfer-Encoding": "chunked", **headers}
    return _head(status, told) + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks if chunk)


def whole(*pieces: bytes | str, kind: str = EVENTS, **headers: str) -> bytes:
    """An answer in chunks, with its end."""
    return opened(*pieces, status=200, kind=kind, **headers) + b"0\r\n\r\n"


def event(name: str, said: object) -> str:
    """A server-sent event; without a name where that is empty."""
    return (f"event: {name}\n" if name else "") + f"data: {said if isinstance(said, str) else json.dumps(said)}\n\n"


def send(sent: bytes) -> Step:
    """Sends this, and the connection takes the next request."""
    return Step(lambda line: line.send(sent))


def end(sent: bytes = b"") -> Step:
    """Sends this, and the connection ends."""

    def act(line: Line) -> None:
        line.send(sent)
        line.close()

    return Step(act)


def reset(sent: bytes = b"") -> Step:
    """Sends this, and the connection is torn down."""

    def act(line: Line) -> None:
        line.send(sent)
        line.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()

    return Step(act)


def hang(sent: bytes = b"") -> Step:
    """Sends this, and nothing more, until the client leaves."""

    def act(line: Line) -> None:
        line.send(sent)
        line.wait_gone()
        raise ConnectionAbortedError

    return Step(act)


def deaf() -> Step:
    """Reads nothing behind the head, and says nothing."""
    return Step(lambda line: line.close() if line.closing.wait() else None, reads=False)


def drip(sent: Iterable[int], *, every_s: float, begin: bytes = b"") -> Step:
    """Sends `begin` at once, then the rest byte by byte."""

    def act(line: Line) -> None:
        line.send(begin)
        for byte in sent:
            if line.closing.wait(every_s):
                return
            line.send(bytes([byte]))
        line.close()

    return Step(act)


def _head(status: int, headers: dict[str, str]) -> bytes:
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Status\r\n{named}\r\n".encode()


def _until(connection: socket.socket, received: bytes, *, end: bytes) -> tuple[bytes, bytes]:
    """What comes up to an end, and what has come behind it; nothing where the client leaves before."""
    while end not in received:
        piece = connection.recv(65536)
        if not piece:
            return b"", b""
        received += piece
    head, _, rest = received.partition(end)
    return head, rest
