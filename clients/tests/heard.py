"""What LlamaIndex's models are asked and answer, as its instrumentation tells it."""

from dataclasses import dataclass
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.bridge.pydantic import Field
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent


@dataclass
class Call:
    """One call of a model."""

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
