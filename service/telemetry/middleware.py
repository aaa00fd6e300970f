"""Gives each request an id, and a log line, metrics and a span when its response has ended. Reads no body."""

import logging
import re
import secrets
import time
from types import TracebackType
from typing import Self

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.telemetry.labels import CLIENT_LEFT, METHODS, OTHER
from service.telemetry.logs import Notes, fields, noting, tell_once
from service.telemetry.metrics import Metrics
from service.telemetry.traces import Span, Tracer

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
FETCHED = "/v1/handoffs/"  # vLLM asks for each layer of a prompt: a line for each would hide the others
UNMATCHED = "unmatched"  # a path without a route

_log = logging.getLogger("service.request")


class TelemetryMiddleware:
    """The outermost middleware, so that the framework's own responses pass it too."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, tracer: Tracer) -> None:
        self.app = app
        self._metrics, self._tracer = metrics, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        identifier = _identify(headers.get("x-request-id", ""))
        scope.setdefault("state", {})["request_id"] = identifier
        with (
            noting(identifier) as notes,
            self._tracer.request("HTTP", headers) as span,
            _Exchange(scope, send, metrics=self._metrics, notes=notes, span=span) as exchange,
        ):
            await self.app(scope, receive, exchange.send)


class _Exchange:
    """One request and its response, from the first byte to the last."""

    def __init__(self, scope: Scope, send: Send, *, metrics: Metrics, notes: Notes, span: Span) -> None:
        self._scope, self._send = scope, send
        self._metrics, self._notes, self._span = metrics, notes, span
        self._started = time.perf_counter()
        self._status = 0
        self._is_over = False
        self._is_cut = False

    async def send(self, message: Message) -> None:
        """Pass a message on; the first one gets our headers."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message = {**message, "headers": self._headers(message)}
        try:
            await self._send(message)
        except OSError:
            self._is_cut = True
            raise
        if _is_last(message):
            self._finish(self._status, "complete")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        del kind, at
        if error is None:
            self._finish(CLIENT_LEFT, "client_left")
            return
        if isinstance(error, Exception) and not isinstance(error, ClientDisconnect) and not self._is_cut:
            _log.error("unhandled exception", exc_info=error, extra=fields(route=_template(self._scope)))
            self._finish(500, "failed", error=type(error).__qualname__)
        else:
            self._finish(CLIENT_LEFT, "client_left" if isinstance(error, Exception) else "cancelled")
        tell_once(error)

    def _headers(self, message: Message) -> list[tuple[bytes, bytes]]:
        headers = MutableHeaders(raw=list(message.get("headers", ())))
        headers["x-request-id"] = self._scope["state"]["request_id"]
        return headers.raw

    def _finish(self, status: int, ended: str, *, error: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        seconds = time.perf_counter() - self._started
        method, route = self._scope["method"], _template(self._scope)
        method = method if method in METHODS else "_OTHER"  # clients choose it freely
        self._metrics.http(method=method, route=route, status=status, seconds=seconds)
        if status >= 500:
            self._span.fail(error or str(status))
        self._span.describe(method=method, route=route, status=status)
        self._span.set(request_id=self._scope["state"]["request_id"], tenant=self._notes.fields.get("tenant"))
        line = {**self._notes.fields, "method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
        if ended != "complete":
            line["ended"] = ended
        if self._span.trace_id:
            line["trace_id"] = self._span.trace_id
            self._span.end()
        level = logging.DEBUG if route.startswith(FETCHED) and status < 400 else logging.INFO
        _log.log(level, "request", extra=fields(**line))


def _identify(asked: str) -> str:
    return asked if REQUEST_ID.fullmatch(asked) else secrets.token_hex(16)


def _is_last(message: Message) -> bool:
    if message["type"] == "http.response.body":
        return not message.get("more_body", False)
    return message["type"] == "http.response.pathsend"


def _template(scope: Scope) -> str:
    """The route that serves this path, with its parameters as names. FastAPI keeps a router's prefix apart."""
    for place in (scope.get("fastapi", {}).get("effective_route_context"), scope.get("route")):
        template = getattr(place, "path_format", None)
        if isinstance(template, str):
            return template
    return OTHER if "endpoint" in scope else UNMATCHED
