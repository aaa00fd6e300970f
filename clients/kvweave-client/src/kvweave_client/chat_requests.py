"""A chat about passages that a framework found, for either client. Knows no framework."""

from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass

from kvweave_client import operations
from kvweave_client.aio import AsyncClient
from kvweave_client.answers import ChatAnswer, ChatEvent
from kvweave_client.client import Client
from kvweave_client.errors import NotFound
from kvweave_client.options import ChatOptions, Message
from kvweave_client.plans import Plan, ask


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat. `as_texts`: its options without ids of chunks, for a service that does not know one of them any more.

    What is not known is refused before anything else is said.
    """

    messages: list[Message]
    options: ChatOptions
    as_texts: ChatOptions | None = None

    def answered(self) -> Plan[ChatAnswer]:
        """The answer."""
        try:
            return (yield from ask(operations.chat(self.messages, **self.options)))
        except NotFound:
            if self.as_texts is None:
                raise
            return (yield from ask(operations.chat(self.messages, **self.as_texts)))

    def events(self, client: Client) -> Generator[ChatEvent]:
        """The answer while it comes about. Left early, it ends its connection, and the service stops."""
        try:
            with client.stream_chat(self.messages, **self.options) as events:
                yield from events
        except NotFound:
            if self.as_texts is None:
                raise
            with client.stream_chat(self.messages, **self.as_texts) as events:
                yield from events

    async def aevents(self, client: AsyncClient) -> AsyncGenerator[ChatEvent]:
        """The asynchronous `events`."""
        try:
            async with client.stream_chat(self.messages, **self.options) as events:
                async for event in events:
                    yield event
        except NotFound:
            if self.as_texts is None:
                raise
            async with client.stream_chat(self.messages, **self.as_texts) as events:
                async for event in events:
                    yield event
