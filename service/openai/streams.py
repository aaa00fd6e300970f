"""An answer's events as lines of a stream, whichever of OpenAI's forms these have. Knows no form."""

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Final, Protocol

from fastapi import Request, Response

from service.answers.events import ChoiceFinished, Delta, Event, Finished, MessageAdded
from service.api.streams import EventStream, client_gone, unless_gone
from service.openai.errors import FORESEEN

SURE: Final = b""  # what a stream yields first: from here on there is an answer

log = logging.getLogger(__name__)


class StreamForm(Protocol):
    """The lines of one request's answers."""

    def opening(self) -> Iterator[bytes]:
        """What comes when there is a first token."""
        ...

    def of(self, event: Event) -> Iterator[bytes]:
        """What an event adds, often nothing. Behind the last event stands the end of the stream."""
        ...

    def failing(self, error: Exception) -> bytes:
        """The end of a stream that went wrong."""
        ...


async def streamed(request: Request, events: AsyncGenerator[Event], *, form: StreamForm) -> Response:
    """The response that tells the events as they come. Raises what goes wrong before the first token."""
    lines = _lines(events, form)
    sure = await unless_gone(request, _first(lines))
    return client_gone() if sure is None else EventStream(lines)


async def _first(lines: AsyncGenerator[bytes]) -> bytes:
    return await anext(lines)


async def _lines(events: AsyncGenerator[Event], form: StreamForm) -> AsyncGenerator[bytes]:
    """Yields `SURE` when there is a first token, then the lines.

    Errors before are raised; one that comes later is the last line, and what nobody foresaw is raised besides.
    """
    begun = False
    async with aclosing(events):
        try:
            async for event in events:
                if not begun and isinstance(event, Delta | MessageAdded | ChoiceFinished | Finished):
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
            if not isinstance(error, FORESEEN):
                raise
            log.warning("an answer ended early", extra={"reason": type(error).__name__})
