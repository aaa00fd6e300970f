"""Clients that leave: whatever they waited for is given up at once."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest
from starlette.types import Message

from service.answers.answer_request import AnswerRequest
from service.answers.events import Delta, Event
from tests.service.openai.served import KEY, OPENING, FakeCore, FakePipeline, app_over

ASKED = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Where?"}]},
    "/v1/responses": {"input": "Where?"},
}


@dataclass(slots=True)
class EndlessPipeline(FakePipeline):
    """Tells its events and then nothing more, without an end."""

    waits: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, ask: AnswerRequest) -> AsyncGenerator[Event]:
        self.open += 1
        try:
            for event in self.events:
                yield event
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            self.open -= 1


class Visitor:
    """An ASGI server with one client, who leaves when told."""

    def __init__(self, pipeline: FakePipeline, *, stream: bool, path: str = "/v1/chat/completions") -> None:
        body = {"model": "default", "stream": stream, **ASKED[path]}
        self._path = path
        self.app = app_over(FakeCore(pipeline))
        self.sent: list[Message] = []
        self.leaves = asyncio.Event()
        self._messages: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def visit(self) -> None:
        headers = [(b"authorization", f"Bearer {KEY}".encode()), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": self._path, "headers": headers}
        more = {"query_string": b"", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}
        await self.app({**scope, **more}, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._messages:
            return self._messages.pop()
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("kind", ["whole", "stream"])
@pytest.mark.parametrize("events", [(), OPENING, (*OPENING, Delta("Avei"))])
def test_a_client_that_leaves_frees_its_place(path: str, kind: str, events: tuple[Event, ...]) -> None:
    async def scene() -> None:
        pipeline = EndlessPipeline(events)
        visitor = Visitor(pipeline, stream=kind == "stream", path=path)
        visit = asyncio.create_task(visitor.visit())
        await pipeline.waits.wait()
        assert pipeline.open == 1
        visitor.leaves.set()
        await asyncio.wait_for(visit, 10)
        assert pipeline.open == 0
        is_begun = kind == "stream" and len(events) > len(OPENING)
        assert visitor.sent[0]["status"] == (200 if is_begun else 499)

    asyncio.run(scene())


def test_a_token_is_sent_before_the_next_is_there() -> None:
    async def scene() -> list[Message]:
        pipeline = EndlessPipeline((*OPENING, Delta("Avei")))
        visitor = Visitor(pipeline, stream=True)
        visit = asyncio.create_task(visitor.visit())
        await pipeline.waits.wait()
        visitor.leaves.set()
        await visit
        return visitor.sent

    bodies = [message["body"] for message in asyncio.run(scene()) if message["type"] == "http.response.body"]
    assert any(b'"content":"Avei"' in body for body in bodies)
