"""A way to a server on loopback that can stop to carry anything, with every connection left open."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class HangingWay:
    """Listens on `port` and carries to the server's. While `hangs` is set, nothing goes either way."""

    def __init__(self, server_port: int) -> None:
        self.hangs = threading.Event()
        self._server_port = server_port
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def drop(self) -> None:
        """Closes every connection."""
        while self._sockets:
            each = self._sockets.pop()
            with suppress(OSError):  # not connected any more
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:  # it is away just now
                client.close()
                continue
            self._sockets += [client, server]
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 16):
                if self.hangs.is_set():
                    return
                other.sendall(data)
            other.shutdown(socket.SHUT_RDWR)
        except OSError:  # one of them has gone
            return


@contextmanager
def hanging_way(server_port: int) -> Iterator[HangingWay]:
    way = HangingWay(server_port)
    try:
        yield way
    finally:
        way.close()
