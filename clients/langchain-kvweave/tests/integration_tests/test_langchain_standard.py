"""LangChain's standard integration tests, against a running service with the built-in model."""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import (
    ChatModelIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.integration_tests.indexer import AsyncDocumentIndexTestSuite, DocumentIndexerTestSuite
from pydantic import SecretStr

from clients.tests.canned import PASSAGES
from clients.tests.readme import Service
from kvweave_client import Client, NotFound
from kvweave_client.options import NewDocument
from langchain_kvweave import ChatKVWeave, KVWeaveRetriever, KVWeaveSink, MirroredStore, mirrored


class Served:
    """The suites take their arguments from properties, which see no fixtures."""

    running: Service

    @pytest.fixture(autouse=True)
    def _served(self, service: Service) -> None:
        type(self).running = service

    @property
    def access(self) -> dict[str, Any]:
        return {"base_url": self.running.base_url, "api_key": self.running.key}


class TestChatKVWeave(Served, ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatKVWeave

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # The built-in model has never seen JSON, and finds no end of a string: a bias towards the token `"` helps it.
        return {**self.access, "temperature": 0, "max_tokens": 40, "model_kwargs": {"logit_bias": {"6": 30}}}

    @property
    def has_tool_calling(self) -> bool:
        return False  # the service has no tools

    @property
    def supports_json_mode(self) -> bool:
        return False  # it yields any JSON object; the fields that the prompt asks for are beyond the built-in model

    @property
    def model_override_value(self) -> str:
        with Client(self.running.base_url, self.running.key) as client:
            return client.models()[0].id

    @property
    def supported_usage_metadata_details(self) -> Any:  # noqa: ANN401 (the suite has a type of its own)
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        sink = KVWeaveSink(collection=f"usage-{uuid.uuid4()}", wait=True, **self.access)
        sink.upsert([Document(PASSAGES[1], id="letter")])
        model = ChatKVWeave(**self.access, temperature=0)
        asked = f"{PASSAGES[1]}\n\nQuestion: Which animal does Halio keep?"
        answer = reduce(add, model.stream(asked)) if stream else model.invoke(asked)
        with Client(self.running.base_url, self.running.key) as client:
            client.delete_collection(sink.collection)
        assert (answer.usage_metadata or {}).get("input_token_details", {}).get("cache_read", 0) > 0
        return answer


class TestKVWeaveRetriever(Served, RetrieversIntegrationTests):
    collection = f"retriever-{uuid.uuid4()}"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _filled(cls, service: Service) -> Iterator[None]:
        """Made once: the suite only reads."""
        documents = [NewDocument(id=f"{cls.collection}/{number}", text=text) for number, text in enumerate(PASSAGES)]
        with Client(service.base_url, service.key) as client:
            client.wait(client.put_documents(documents, collection=cls.collection).job_id)
            yield
            client.delete_collection(cls.collection)

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return KVWeaveRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {**self.access, "collection": self.collection}

    @property
    def retriever_query_example(self) -> str:
        return "Halio and Norworks, lamps of the captain in Belford, and the next page"


class Sinks(Served):
    """An empty sink for each test, that waits, as the suites read what they have just written."""

    @pytest.fixture
    def sink(self, service: Service, collection: str) -> Iterator[KVWeaveSink]:
        yield KVWeaveSink(collection=collection, wait=True, base_url=service.base_url, api_key=SecretStr(service.key))
        with Client(service.base_url, service.key) as client, suppress(NotFound):
            client.delete_collection(collection)


class TestKVWeaveSink(Sinks, DocumentIndexerTestSuite):
    @pytest.fixture
    def index(self, sink: KVWeaveSink) -> KVWeaveSink:
        return sink


class TestKVWeaveSinkAsync(Sinks, AsyncDocumentIndexTestSuite):
    @pytest.fixture
    async def index(self, sink: KVWeaveSink) -> KVWeaveSink:
        return sink


class TestMirroredStore(Sinks, VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, sink: KVWeaveSink) -> MirroredStore:
        return mirrored(InMemoryVectorStore(self.get_embeddings()), sink)
