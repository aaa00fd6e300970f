"""What the model's tests share: a client, models, and what their calls cost."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.bridge.pydantic import Field
from llama_index.core.instrumentation import root_dispatcher  # pyright: ignore[reportPrivateImportUsage] (its own)
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent

from clients.conftest import Running
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


@dataclass
class Call:
    """Of a model, as its instrumentation tells it."""

    messages: list[ChatMessage]
    response: ChatResponse

    @property
    def usage(self) -> dict[str, int]:
        raw = self.response.raw
        assert isinstance(raw, dict)
        return raw["usage"]

    @property
    def sources(self) -> list[str]:
        """Where each recognised chunk's cache came from."""
        return [chunk["source"] for chunk in self._chunks]

    @property
    def reused(self) -> int:
        """Tokens of chunks that came from a cache and were not read again; what else was reused is not among them."""
        return sum(chunk["tokens"] - chunk["recomputed"] for chunk in self._chunks if chunk["source"] != "computed")

    @property
    def _chunks(self) -> list[dict[str, Any]]:
        raw = self.response.raw
        assert isinstance(raw, dict)
        return raw["report"]["chunks"]


class Ear(BaseEventHandler):
    """Hears all events."""

    calls: list[Call] = Field(default_factory=list[Call])
    names: list[str] = Field(default_factory=list[str])

    def handle(self, event: BaseEvent, **kwargs: object) -> None:
        self.names.append(event.class_name())
        if isinstance(event, LLMChatEndEvent) and event.response:
            self.calls.append(Call([*event.messages], event.response))


@pytest.fixture
def heard() -> Iterator[Ear]:
    ear = Ear()
    root_dispatcher.add_event_handler(ear)
    yield ear
    root_dispatcher.event_handlers.remove(ear)
