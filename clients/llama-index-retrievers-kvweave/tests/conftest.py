"""What the retriever's tests share: a client, and a service that is away when a test says so."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from clients.conftest import Running
from clients.tests.line import Line
from kvweave_client import Client, Retries
from llama_index.retrievers.kvweave import KVWeaveSink


@pytest.fixture(scope="session")
def client(service: Running) -> Iterator[Client]:
    with Client(service.base_url, service.key) as client:
        yield client


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
