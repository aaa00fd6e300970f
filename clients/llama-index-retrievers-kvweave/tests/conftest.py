"""What the retriever's tests share: a client, and a service that is away when a test says so."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from clients.conftest import Running
from kvweave_client import Client, Retries
from llama_index.retrievers.kvweave import KVWeaveSink


@pytest.fixture(scope="session")
def client(service: Running) -> Iterator[Client]:
    with Client(service.base_url, service.key) as client:
        yield client


@dataclass
class Line(httpx.BaseTransport):
    """The way to the service."""

    left: float = math.inf  # requests that still find it
    sent: int = 0
    inner: httpx.HTTPTransport = field(default_factory=httpx.HTTPTransport)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent += 1
        self.left -= 1
        if self.left < 0:
            raise httpx.ConnectError("the line is cut", request=request)
        return self.inner.handle_request(request)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def line() -> Line:
    return Line()


Sinks = Callable[..., KVWeaveSink]


@pytest.fixture
def sinks(service: Running, collection: str, line: Line) -> Iterator[Sinks]:
    """Sinks into the test's collection, over its line."""
    http = httpx.Client(transport=line)
    over = Client(service.base_url, service.key, retries=Retries(most=0), http=http)

    def make(**options: object) -> KVWeaveSink:
        given = {"collection": collection, "base_url": service.base_url, "api_key": service.key, **options}
        return KVWeaveSink.model_validate(given).using(over)

    yield make
    http.close()
