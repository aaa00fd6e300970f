"""A server that is told to stop, and those who had come before: each is answered, whom nobody had accepted too."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from service.api import connections
from service.commands.serve import server_over
from tests.service.serving import WAIT_S, wait_for


class Stopping:
    """A server whose loop, when asked to, accepts nobody any more, as one does that is busy."""

    def __init__(self, listening: socket.socket) -> None:
        self.port = listening.getsockname()[1]
        self.goes_on = threading.Event()
        self._listening = listening
        paths = {"/": self._greet, "/accept-no-more": self._accept_no_more, "/long": self._long}
        app = Starlette(routes=[Route(path, told, methods=["GET", "POST"]) for path, told in paths.items()])
        self.server = server_over(app, tell=lambda limit: None, stop_s=WAIT_S)

    def client(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def get(self, client: http.client.HTTPConnection, path: str = "/") -> str:
        client.request("GET", path)
        return said(client)

    async def _greet(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"hello {len(await request.body())}")

    async def _accept_no_more(self, _: Request) -> PlainTextResponse:
        asyncio.get_running_loop().remove_reader(self._listening.fileno())
        return PlainTextResponse("as you say")

    async def _long(self, _: Request) -> StreamingResponse:
        async def parts() -> AsyncGenerator[str]:
            yield "begun"
            await asyncio.to_thread(self.goes_on.wait, WAIT_S)
            yield " and ended"

        return StreamingResponse(parts())


def said(client: http.client.HTTPConnection) -> str:
    response = client.getresponse()
    return f"{response.status} {response.getheader('connection')} {response.read().decode()}"


@contextmanager
def serving() -> Iterator[Stopping]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        made = Stopping(listening)
        thread = threading.Thread(target=made.server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            wait_for(lambda: made.server.started, "it serves")
            yield made
        finally:
            made.goes_on.set()
            made.server.should_exit = True
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_who_had_connected_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the server had accepted him, read his request, answered an earlier one or begun to answer this one."""
    monkeypatch.setattr(connections, "LAST_S", float(WAIT_S))  # the test's own thread may be slow
    with serving() as served, ExitStack() as stack:
        kept, silent, half, long, late, mute = (stack.enter_context(closing(served)) for _ in range(6))
        assert served.get(kept) == "200 None hello 0"
        silent.connect()
        half.putrequest("POST", "/")
        half.putheader("Content-Length", "4")
        half.endheaders(b"ab")
        long.request("GET", "/long")
        streamed = long.getresponse()
        assert streamed.read(5) == b"begun"
        assert served.get(kept, "/accept-no-more") == "200 None as you say"
        late.request("GET", "/")
        mute.connect()
        served.server.should_exit = True
        assert said(late) == "200 close hello 0"
        for each in (kept, silent, mute):
            assert served.get(each) == "200 close hello 0"
        half.send(b"cd")
        assert said(half) == "200 close hello 4"
        with pytest.raises(ConnectionRefusedError):
            served.get(served.client())
        served.goes_on.set()
        assert streamed.read() == b" and ended"


def test_who_says_nothing_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LAST_S", 0.01)
    with serving() as served, ExitStack() as stack:
        kept, silent = (stack.enter_context(closing(served)) for _ in range(2))
        assert served.get(kept) == "200 None hello 0"
        silent.connect()
        served.server.should_exit = True
        assert [each.sock.recv(1) for each in (kept, silent)] == [b"", b""]


@contextmanager
def closing(served: Stopping) -> Iterator[http.client.HTTPConnection]:
    client = served.client()
    try:
        yield client
    finally:
        client.close()
