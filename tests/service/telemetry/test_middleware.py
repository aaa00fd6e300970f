"""Requests through the middleware: ids, lines, metrics and spans, also where the client or the handler leaves early."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.responses import StreamingResponse
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.telemetry.export import tracer_over
from service.telemetry.logs import FIELDS, note, request_id
from service.telemetry.metrics import Metrics
from service.telemetry.middleware import REQUEST_ID, TelemetryMiddleware
from service.telemetry.traces import Tracer


class Lines(logging.Handler):
    """The records of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [getattr(record, FIELDS) for record in self.records if record.getMessage() == "request"]


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("service.request"), Lines()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = propagate


@cache
def made_app() -> FastAPI:
    app, router = FastAPI(), APIRouter(prefix="/docs-of/{collection}")

    @router.get("/items/{item}")
    def item(collection: str, item: str) -> str:
        note(tenant="acme", tokens=3)
        return request_id.get()

    @app.get("/plain")
    async def plain() -> str:
        return "ok"

    @app.get("/broken")
    async def broken() -> str:
        raise ValueError("a secret")

    app.include_router(router, prefix="/v1")
    return app


def get(path: str, *, metrics: Metrics | None = None, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        wrapped = TelemetryMiddleware(made_app(), metrics=metrics or Metrics(), tracer=Tracer())
        transport = httpx.ASGITransport(app=wrapped, raise_app_exceptions=False)  # pyright: ignore[reportArgumentType]
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return asyncio.run(ask())


def counted(metrics: Metrics) -> dict[tuple[str, str, str], float]:
    families = text_string_to_metric_families(metrics.render()[0].decode())
    found = [s for f in families for s in f.samples if s.name == "kvweave_http_requests_total"]
    return {(s.labels["method"], s.labels["route"], s.labels["status"]): s.value for s in found}


def test_a_request_makes_one_line_with_template_notes_and_id(lines: Lines) -> None:
    metrics = Metrics()
    response = get("/v1/docs-of/secret/items/hidden", metrics=metrics, x_request_id="mine-1")
    assert response.headers["x-request-id"] == "mine-1" and response.json() == "mine-1"
    (line,) = lines.requests
    route = "/v1/docs-of/{collection}/items/{item}"
    assert line.pop("seconds") >= 0
    assert line == {"tenant": "acme", "tokens": 3, "method": "GET", "route": route, "status": 200}
    assert counted(metrics) == {("GET", route, "200"): 1}


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=80))
def test_an_id_is_the_clients_if_it_is_sane_and_else_drawn(asked: str) -> None:
    answered = get("/plain", x_request_id=asked).headers["x-request-id"]
    assert REQUEST_ID.fullmatch(answered)
    assert (answered == asked) == bool(REQUEST_ID.fullmatch(asked))


def test_paths_that_nothing_serves_share_one_name(lines: Lines) -> None:
    metrics = Metrics()
    for number in range(20):
        get(f"/nothing/{number}", metrics=metrics)
    assert counted(metrics) == {("GET", "unmatched", "404"): 20}
    assert {line["route"] for line in lines.requests} == {"unmatched"}


def test_an_exception_is_told_once_with_its_traceback_and_answered_with_the_id(lines: Lines) -> None:
    metrics = Metrics()
    response = get("/broken", metrics=metrics, x_request_id="mine-2")
    assert (response.status_code, response.headers["x-request-id"]) == (500, "mine-2")
    (error,) = [record for record in lines.records if record.levelno == logging.ERROR]
    assert error.exc_info and isinstance(error.exc_info[1], ValueError)
    assert [line["status"] for line in lines.requests] == [500]
    assert counted(metrics) == {("GET", "/broken", "500"): 1}


async def drive(app: ASGIApp, *, metrics: Metrics, send: Send | None = None) -> list[Message]:
    """One request by hand, so that what is sent can be seen when it is sent."""
    sent: list[Message] = []

    async def keep(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    await TelemetryMiddleware(app, metrics=metrics, tracer=Tracer())(scope, receive, send or keep)
    return sent


START = {"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"theirs")]}


def body(text: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": text, "more_body": more}


def test_a_stream_is_passed_on_piece_by_piece_and_told_at_its_last(lines: Lines) -> None:
    metrics = Metrics()
    told: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for more in (True, True, False):
            told.append(len(lines.requests))
            await send(body(b"x", more=more))
        told.append(len(lines.requests))
        note(late=1)

    sent = asyncio.run(drive(app, metrics=metrics))
    assert [message.get("body") for message in sent] == [None, b"x", b"x", b"x"]
    assert [name for name, _ in sent[0]["headers"]] == [b"x-request-id"] and sent[0]["headers"][0][1] != b"theirs"
    assert told == [0, 0, 0, 1] and len(lines.requests) == 1


async def leave_open(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send(body(b"x", more=True))


async def be_cancelled(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    raise asyncio.CancelledError


async def fail_half_way(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    raise ValueError("half way")


@pytest.mark.parametrize(
    ("app", "status", "ended", "errors"),
    [(leave_open, 499, "client_left", 0), (be_cancelled, 499, "cancelled", 0), (fail_half_way, 500, "failed", 1)],
)
def test_a_response_without_an_end_is_told_as_what_it_is(
    app: ASGIApp, status: int, ended: str, errors: int, lines: Lines
) -> None:
    metrics = Metrics()

    async def run() -> None:
        with contextlib.suppress(ValueError, asyncio.CancelledError):
            await drive(app, metrics=metrics)

    asyncio.run(run())
    (line,) = lines.requests
    assert (line["status"], line["ended"]) == (status, ended)
    assert counted(metrics) == {("GET", "unmatched", str(status)): 1}
    assert sum(record.levelno == logging.ERROR for record in lines.records) == errors


def test_a_connection_that_breaks_while_sending_is_no_error_of_ours(lines: Lines) -> None:
    async def broken(message: Message) -> None:
        raise OSError("broken pipe")

    with pytest.raises(OSError, match="broken pipe"):
        asyncio.run(drive(leave_open, metrics=Metrics(), send=broken))
    assert [line["ended"] for line in lines.requests] == ["client_left"]
    assert all(record.levelno < logging.ERROR for record in lines.records)


def test_a_stream_holds_its_stages_within_the_span_of_its_request(lines: Lines) -> None:
    exporter = InMemorySpanExporter()
    tracer = tracer_over(exporter)
    app = FastAPI()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            with tracer.span("decode", tokens=2):
                yield "a"
                yield "b"
            note(completion=2)

        return StreamingResponse(events())

    async def ask() -> None:
        wrapped = TelemetryMiddleware(app, metrics=Metrics(), tracer=tracer)
        transport = httpx.ASGITransport(app=wrapped)  # pyright: ignore[reportArgumentType]
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/stream")).text == "ab"

    asyncio.run(ask())
    tracer.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    top, stage = spans["GET /stream"], spans["decode"]
    assert stage.parent and top.context and stage.parent.span_id == top.context.span_id
    (line,) = lines.requests
    assert line["completion"] == 2 and line["trace_id"] == f"{top.context.trace_id:032x}"
    assert json.dumps(dict(top.attributes or {})).count("kvweave.request_id") == 1


def test_what_is_no_http_passes_untouched() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    asyncio.run(TelemetryMiddleware(app, metrics=Metrics(), tracer=Tracer())({"type": "lifespan"}, receive, send))
    assert seen == ["lifespan"]
