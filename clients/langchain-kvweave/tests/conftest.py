"""What the tests of LangChain's classes share: a service's address, a made-up world, and an embedding of words."""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from zlib import crc32

import pytest
from langchain_core.embeddings import Embeddings

from clients.tests.canned import PASSAGES
from clients.tests.readme import Service
from kvweave_client import Client, NotFound
from langchain_kvweave import ChatKVWeave, KVWeaveRetriever, KVWeaveSink


class Words(Embeddings):
    """A text is the words in it, without their order."""

    def embed_query(self, text: str) -> list[float]:
        vector = [0.0] * 256
        for word in re.findall(r"\w+", text.lower()):
            vector[crc32(word.encode()) % len(vector)] += 1.0
        length = math.hypot(*vector) or 1.0
        return [each / length for each in vector]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


@pytest.fixture
def words() -> Embeddings:
    return Words()


@pytest.fixture
def passages() -> list[str]:
    return [*PASSAGES]


@pytest.fixture
def access(service: Service) -> dict[str, Any]:
    return {"base_url": service.base_url, "api_key": service.key}


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.base_url, service.key) as client:
        yield client


@pytest.fixture
def sink(access: dict[str, Any], client: Client, collection: str) -> Iterator[KVWeaveSink]:
    """Empty, and gone after the test with all that was put in. It waits until all is computed."""
    yield KVWeaveSink(collection=collection, wait=True, **access)
    with suppress(NotFound):
        client.delete_collection(collection)


@pytest.fixture
def retriever(access: dict[str, Any], client: Client, collection: str) -> Iterator[KVWeaveRetriever]:
    """Of a collection that is empty yet."""
    yield KVWeaveRetriever(collection=collection, **access)
    with suppress(NotFound):
        client.delete_collection(collection)


@pytest.fixture
def model(access: dict[str, Any]) -> ChatKVWeave:
    return ChatKVWeave(temperature=0, max_tokens=30, **access)
