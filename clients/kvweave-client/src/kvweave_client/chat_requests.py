"""A chat about passages that a framework found, for either client. Knows no framework."""

from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass
from typing import cast

from kvweave_client import operations
from kvweave_client.aio import AsyncClient
from kvweave_client.answers import ChatAnswer, ChatEvent
from kvweave_client.client import Client
from kvweave_client.errors import NotFound
from kvweave_client.options import ChatOptions, Json, LooseDocument, Message
from kvweave_client.plans import Plan, ask


@dataclass(frozen=True, slots=True)
class Reading:
    """What a chat is given to read: chunks by their ids, then others by their text. `texts`: the text of all."""

    chunk_ids: tuple[str, ...] = ()
    loose: tuple[LooseDocument, ...] = ()
    texts: tuple[LooseDocument, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat. `as_texts`: its options without ids of chunks, for a service that does not know one of them any more.

    What is not known is refused before anything else is said.
    """

    messages: list[Message]
    options: ChatOptions
    as_texts: ChatOptions | None = None

    @classmethod
    def about(cls, messages: list[Message], options: Mapping[str, object], *, read: Reading) -> "ChatRequest":
        """The chat with what is read before its last message."""
        as_texts = _with(options, Reading(loose=read.texts)) if read.chunk_ids else None
        return cls(messages, _with(options, read), as_texts)

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


def _with(options: Mapping[str, object], read: Reading) -> ChatOptions:
    """Adds what is read to the options. Chunks that they name themselves come first."""
    given = cast(ChatOptions, options)
    chunks = list(dict.fromkeys([*(given.get("chunk_ids") or ()), *read.chunk_ids]))
    loose = [*(given.get("documents") or ()), *read.loose]
    more: Json = {"chunk_ids": chunks} if chunks else {}
    more |= {"documents": loose} if loose else {}
    return cast(ChatOptions, {**options, **more})
