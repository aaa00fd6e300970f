"""Server-sent events: pings in silence, errors in mid-stream; cancels work whose client has left."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from contextvars import copy_context
from types import UnionType
from typing import Final, Protocol, TypeVar

import anyio
from fastapi import Request, Response
from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from blend.engine.engine import ChoiceEnded, MessagePiece
from service.answers.events import Delta, Event, Finished
from service.api.problems import KNOWN

MEDIA = "text/event-stream"
PING = b": ping\n\n"
PING_S = 15.0  # without an event, before something is sent so that no proxy hangs up

ANSWERING: Final = Delta | MessagePiece | ChoiceEnded | Finished
SURE: Final = b""  # what a stream yields first: from here on there is an answer

T = TypeVar("T")

log = logging.getLogger(__name__)


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


class StreamForm(Protocol):
    """The lines of one request's answers."""

    def opening(self) -> Iterator[bytes]:
        """What comes before the event with which the answer begins."""
        ...

    def of(self, event: Event) -> Iterator[bytes]:
        """What an event adds, often nothing."""
        ...

    def ending(self) -> Iterator[bytes]:
        """The end of the stream, when all of the answer is over."""
        ...

    def failing(self, error: Exception) -> bytes:
        """The end of a stream that went wrong."""
        ...


async def streamed(
    request: Request, events: AsyncGenerator[Event], *, form: StreamForm, begins: UnionType = ANSWERING
) -> Response:
    """The response that tells the events as they come. Raises what goes wrong before the first of those that begin it,
    by default tokens.
    """
    lines = _lines(events, form, begins=begins)
    sure = await unless_gone(request, _following(lines))
    return client_gone() if sure is None else EventStream(lines)


async def _lines(events: AsyncGenerator[Event], form: StreamForm, *, begins: UnionType) -> AsyncGenerator[bytes]:
    """Yields `SURE` when the answer begins, then the lines.

    Errors before are raised; one that comes later is the last line, and what nobody foresaw is raised besides.
    """
    begun = False
    async with aclosing(events):
        try:
            async for event in events:
                if not begun and isinstance(event, begins):
                    begun = True
                    yield SURE
                    for line in form.opening():
                        yield line
                for line in form.of(event):
                    yield line
        except Exception as error:
            if not begun:
                raise
            yield form.failing(error)
            if not isinstance(error, KNOWN):
                raise
            log.warning("an answer ended early", extra={"reason": type(error).__name__})
            return
    for line in form.ending():
        yield line
