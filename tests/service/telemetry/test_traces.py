"""Spans of requests and stages, over an exporter in memory: what belongs to what, and that no text is sent."""

from collections.abc import Generator, Iterator, Sequence
from threading import Event

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from service.telemetry.export import exporting_tracer, signal_url, tracer_over
from service.telemetry.traces import Tracer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Collected(InMemorySpanExporter):
    """Keeps the spans behind the end of its tracer."""

    def named(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.get_finished_spans()}


@pytest.fixture
def exporter() -> Collected:
    return Collected()


@pytest.fixture
def tracer(exporter: Collected) -> Iterator[Tracer]:
    tracer = tracer_over(exporter)
    yield tracer
    tracer.close()


def test_stages_belong_to_their_request_and_that_to_the_trace_of_the_client(
    tracer: Tracer, exporter: Collected
) -> None:
    with tracer.request("HTTP", HEADERS) as request:
        with tracer.span("retrieve", hits=3), tracer.span("fetch"):
            pass
        request.describe(method="POST", route="/v1/answers", status=200)
        assert request.trace_id == TRACE
        request.end()
    tracer.close()
    spans = exporter.named()
    top = spans["POST /v1/answers"]
    assert top.parent and top.context and f"{top.parent.span_id:016x}" == PARENT and top.kind is SpanKind.SERVER
    assert dict(top.attributes or {})["http.response.status_code"] == 200
    assert all((p := spans[name].parent) and p.span_id == top.context.span_id for name in ("retrieve", "fetch"))
    assert spans["retrieve"].attributes == {"kvweave.hits": 3}
    assert top.resource.attributes["service.name"] == "kvweave"


@pytest.mark.parametrize("header", ["", "00-zz-b7ad6b7169203331-01", f"00-{'0' * 32}-{PARENT}-01", "\x00"])
def test_a_broken_traceparent_begins_a_trace(header: str, tracer: Tracer, exporter: Collected) -> None:
    with tracer.request("HTTP", {"traceparent": header}) as request:
        request.end()
    tracer.close()
    (span,) = exporter.get_finished_spans()
    assert span.parent is None


def test_a_stage_that_raises_sends_the_class_and_not_the_message(tracer: Tracer, exporter: Collected) -> None:
    with pytest.raises(ValueError, match="secret"), tracer.span("fuse"):
        raise ValueError("a secret of the document")
    tracer.close()
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR and span.attributes == {"error.type": "ValueError"}
    assert "secret" not in span.to_json()


def test_texts_are_no_attributes(tracer: Tracer, exporter: Collected) -> None:
    with tracer.span("fetch", tenant="acme", question="where is the key?", none=None, share=0.5):
        pass
    tracer.close()
    (span,) = exporter.get_finished_spans()
    assert span.attributes == {"kvweave.tenant": "acme", "kvweave.share": 0.5}


def test_a_generator_may_hold_a_stage_and_be_left(tracer: Tracer, exporter: Collected) -> None:
    def decode() -> Generator[int]:
        with tracer.span("decode"):
            yield 1

    steps = decode()
    with tracer.request("HTTP", HEADERS) as request:
        next(steps)
        request.end()
    steps.close()
    tracer.close()
    span = exporter.named()["decode"]
    assert span.attributes == {"error.type": "GeneratorExit"} and span.status.status_code is StatusCode.UNSET


def test_a_silent_tracer_takes_all_calls() -> None:
    tracer = Tracer()
    with tracer.request("HTTP", HEADERS) as request, tracer.span("fetch", chunks=1) as stage:
        stage.set(tier="ram")
        request.describe(method="GET", route="/", status=500)
        request.fail("500")
        request.end()
    assert request.trace_id == ""
    tracer.close()


class Stuck(SpanExporter):
    """A collector that does not answer before it is let go."""

    def __init__(self) -> None:
        self.release, self.sent = Event(), Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        assert self.release.wait(30)
        self.sent.set()
        return SpanExportResult.SUCCESS


def test_closing_does_not_wait_for_a_collector_that_does_not_answer() -> None:
    exporter = Stuck()
    tracer = tracer_over(exporter)
    with tracer.span("fetch"):
        pass
    tracer.close(timeout_s=0.01)
    assert not exporter.sent.is_set()
    exporter.release.set()
    assert exporter.sent.wait(30)


def test_a_collector_gets_the_path_of_otlp_and_a_full_url_stays() -> None:
    assert signal_url("http://localhost:4318") == "http://localhost:4318/v1/traces"
    assert signal_url("https://host/") == "https://host/v1/traces"
    assert signal_url("https://host/otlp/v1/traces?x=1") == "https://host/otlp/v1/traces?x=1"
    with pytest.raises(ValueError, match="http://localhost:4318"):
        signal_url("localhost:4318")


def test_a_tracer_to_a_url_closes_where_nothing_was_sent() -> None:
    exporting_tracer("http://127.0.0.1:9").close()
