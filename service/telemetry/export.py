"""Sends spans to a collector by OTLP over HTTP. Needs the extra `traces`; only the composition root imports it."""

from importlib.metadata import version
from threading import Thread
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from service.telemetry.traces import Tracer

SEND_S = 5.0
SIGNAL_PATH = "/v1/traces"


def exporting_tracer(endpoint: str) -> Tracer:
    """A tracer that sends to this URL; without a path it is a collector's, and OTLP's own path is added."""
    return tracer_over(OTLPSpanExporter(endpoint=signal_url(endpoint), timeout=SEND_S))


def tracer_over(exporter: SpanExporter) -> Tracer:
    """A tracer that hands batches to this exporter, from a thread of its own."""
    named = Resource.create({"service.name": "kvweave", "service.version": version("kvweave")})
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))

    def close(timeout_s: float) -> None:
        # The library itself waits up to 30 s for a collector that does not answer.
        flush = Thread(target=provider.shutdown, name="flush-traces", daemon=True)
        flush.start()
        flush.join(timeout_s)

    return Tracer(provider.get_tracer("kvweave"), close=close)


def signal_url(endpoint: str) -> str:
    """The address to which spans are sent. Raises ValueError for what is no URL."""
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"traces go to a URL such as http://localhost:4318, got {endpoint!r}")
    return endpoint if url.path.strip("/") else url._replace(path=SIGNAL_PATH).geturl()
