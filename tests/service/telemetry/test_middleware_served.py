"""The same over a real server and real connections: one stream of lines, and clients that go away."""

import asyncio
import io
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from service.telemetry import logs
from service.telemetry.metrics import Metrics
from service.telemetry.middleware import TelemetryMiddleware
from service.telemetry.traces import Tracer

WAIT_S = 30


class Told(io.StringIO):
    """A stream that says when a line with these words came."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words, self.came = words, threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._words in text:
            self.came.set()
        return count


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    wrapped = TelemetryMiddleware(app, metrics=Metrics(), tracer=Tracer())
    server = uvicorn.Server(uvicorn.Config(wrapped, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WAIT_S)


def make_app() -> FastAPI:
    app = FastAPI()

    @app.get("/broken")
    async def broken() -> str:
        raise ValueError("a fault")

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.Event().wait()

        return StreamingResponse(pieces())

    return app


def test_a_fault_is_written_once_and_answered_with_its_id() -> None:
    out = Told('"message": "request"')
    logs.setup_logs("info", "json", stream=out)
    with served(make_app()) as url:
        response = httpx.get(f"{url}/broken")
        assert out.came.wait(WAIT_S)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    faults = [line for line in lines if "traceback" in line]
    assert [(line["message"], line["request_id"]) for line in faults] == [
        ("unhandled exception", response.headers["x-request-id"])
    ]
    assert response.status_code == 500 and sum(line["message"] == "request" for line in lines) == 1


def test_a_client_that_leaves_amid_a_stream_is_told_as_gone() -> None:
    out = Told("client_left")
    logs.setup_logs("info", "json", stream=out)
    with served(make_app()) as url:
        with httpx.stream("GET", f"{url}/endless") as response:
            assert next(response.iter_raw()) == b"first"
        assert out.came.wait(WAIT_S)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    (line,) = [line for line in lines if line["message"] == "request"]
    assert (line["status"], line["route"], line["ended"]) == (499, "/endless", "client_left")
    assert all(line["level"] == "info" for line in lines)
