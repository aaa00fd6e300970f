"""Event streams: what is sent where nothing happens."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from service.api import streams
from service.api.streams import PING, EventStream


async def test_a_stream_without_events_sends_pings_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert streams.PING_S == 15
    monkeypatch.setattr(streams, "PING_S", 0.01)
    pinged, sent = asyncio.Event(), list[bytes]()

    async def events() -> AsyncGenerator[bytes]:
        yield b"one"
        await pinged.wait()
        yield b"two"

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if message.get("body") == PING:
            pinged.set()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody leaves")

    async with asyncio.timeout(10):  # without pings the stream has no end
        await EventStream(events())({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    assert [body for body in sent if body not in (b"", PING)] == [b"one", b"two"]
    assert sent[1:3] == [b"one", PING]


async def test_a_stream_is_closed_where_the_client_leaves_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PING_S", 0.01)
    pinged, closed = asyncio.Event(), list[str]()

    async def events() -> AsyncGenerator[bytes]:
        try:
            yield b"one"
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    async def send(message: Message) -> None:
        if message.get("body") == PING:
            pinged.set()

    async def receive() -> Message:
        await pinged.wait()
        return {"type": "http.disconnect"}

    async with asyncio.timeout(10):
        await EventStream(events())({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    assert closed == ["closed"]
