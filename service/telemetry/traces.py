"""Spans of requests and of their stages, over OpenTelemetry's interface. Knows no exporter: `export.py` has that.

An attribute is a number or a name. Text is dropped, and so are the messages of exceptions.
"""

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from opentelemetry import context, trace
from opentelemetry.trace import NoOpTracer, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

NAME = re.compile(r"[\w./:@{}+-]{1,128}", re.ASCII)

Value = str | int | float | bool | None

_PROPAGATOR = TraceContextTextMapPropagator()


class Span:
    """A timed operation. It ends with its `with` block, or by `end`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def trace_id(self) -> str:
        """The trace's id as others write it; empty where nothing is recorded."""
        return trace.format_trace_id(self._span.get_span_context().trace_id) if self._span.is_recording() else ""

    def set(self, **attributes: Value) -> None:
        """Add attributes; None, and text that is no name, is left out."""
        for name, value in attributes.items():
            self._put(f"kvweave.{name}", value)

    def describe(self, *, method: str, route: str, status: int) -> None:
        """Records the request by OpenTelemetry's attribute names."""
        self._span.update_name(f"{method} {route}")
        self._put("http.request.method", method)
        self._put("http.route", route)
        self._put("http.response.status_code", status)

    def fail(self, error: str) -> None:
        """Notes the error that ended the span, named by its class."""
        self._put("error.type", error)
        self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        """Ends the span. A second call does nothing."""
        if self._span.is_recording():
            self._span.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        del error, at
        if kind is not None and issubclass(kind, Exception):
            self.fail(kind.__qualname__)
        elif kind is not None:  # the client disconnected
            self._put("error.type", kind.__qualname__)
        self.end()

    def _put(self, name: str, value: Value) -> None:
        if value is not None and (not isinstance(value, str) or NAME.fullmatch(value)):
            self._span.set_attribute(name, value)


class Tracer:
    """Makes spans. Without a backend they cost next to nothing and go nowhere."""

    def __init__(self, backend: trace.Tracer | None = None, *, close: Callable[[float], None] | None = None) -> None:
        self._backend = backend or NoOpTracer()
        self._close = close

    def span(self, name: str, **attributes: Value) -> Span:
        """A stage of the present request, as `with tracer.span("fetch"):`.

        It is never a parent: a generator may hold it over a `yield` and be closed from anywhere.
        """
        span = Span(self._backend.start_span(name))
        span.set(**attributes)
        return span

    @contextmanager
    def request(self, name: str, headers: Mapping[str, str]) -> Generator[Span]:
        """A request as a whole, within the trace that `traceparent` names; stages inside belong to it.

        The holder must end it: a response may end before its handler does.
        """
        parent = _PROPAGATOR.extract(headers, context=context.Context())
        span = self._backend.start_span(name, context=parent, kind=SpanKind.SERVER)
        token = context.attach(trace.set_span_in_context(span, parent))
        try:
            yield Span(span)
        finally:
            context.detach(token)

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Send what has ended, and wait no longer than this."""
        if self._close is not None:
            self._close(timeout_s)
