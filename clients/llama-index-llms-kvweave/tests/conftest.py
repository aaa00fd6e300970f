"""What the model's tests share: a client, models, and what their calls cost."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from llama_index.core.instrumentation import root_dispatcher  # pyright: ignore[reportPrivateImportUsage] (its own)

from clients.conftest import Running
from clients.tests.heard import Ear
from kvweave_client import Client
from llama_index.llms.kvweave import KVWeave


@pytest.fixture(scope="session", autouse=True)
def _no_loop() -> None:
    """Where no event loop was ever set, LlamaIndex makes one that it never closes; else it closes its own."""
    asyncio.set_event_loop(None)


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[Client]:
    with Client(service.base_url, service.key) as client:
        yield client


Models = Callable[..., KVWeave]


@pytest.fixture(scope="module")
def models(service: Running) -> Models:
    """Models of the service, which take the likeliest token."""

    def make(**options: object) -> KVWeave:
        own = {"base_url": service.base_url, "api_key": service.key, "temperature": 0.0, "max_tokens": 16}
        return KVWeave.model_validate({**own, **options})

    return make


@pytest.fixture(scope="module")
def llm(models: Models) -> KVWeave:
    return models()


@pytest.fixture
def heard() -> Iterator[Ear]:
    ear = Ear()
    root_dispatcher.add_event_handler(ear)
    yield ear
    root_dispatcher.event_handlers.remove(ear)
