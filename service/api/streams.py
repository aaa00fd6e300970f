"""Server-sent events, and work that stops when its client leaves. Knows no event's meaning."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextvars import copy_context
from typing import TypeVar

import anyio
from fastapi import Request, Response
from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

MEDIA = "text/event-stream"
PING = b": ping\n\n"
PING_S = 15.0  # without an event, before something is sent so that no proxy hangs up

T = TypeVar("T")


def sse(name: str, content: BaseModel) -> bytes:
    """The bytes of one event. JSON has no line breaks, so one line holds it."""
    return f"event: {name}\ndata: {content.model_dump_json()}\n\n".encode()


class EventStream(StreamingResponse):
    """A response whose generator is always closed: at its end, and when the client leaves between two events."""

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        self._events, self._pinged = events, _pinged(events)
        super().__init__(self._pinged, media_type=MEDIA, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._pinged.aclose()
                await self._events.aclose()


async def _pinged(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The events, with pings where none comes for long. All steps of the generator see one context."""
    context = copy_context()
    while True:
        step = asyncio.create_task(_following(events), context=context)
        try:
            while not (await asyncio.wait({step}, timeout=PING_S))[0]:
                yield PING
        finally:
            if not step.done():
                step.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.gather(step, return_exceptions=True)
        event = step.result()
        if event is None:
            return
        yield event


async def _following(events: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(events, None)


async def unless_gone(request: Request, work: Coroutine[object, object, T]) -> T | None:
    """The result, or None for a client that left before: then the work is cancelled, and has ended."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def client_gone() -> Response:
    """The response to a client that left, which nobody reads."""
    return Response(status_code=499)
