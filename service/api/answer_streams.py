"""An answer's events as lines of a stream, in whichever form an interface has. Knows no form."""

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from types import UnionType
from typing import Final, Protocol

from fastapi import Request, Response

from service.answers.events import ChoiceFinished, Delta, Event, Finished, MessageAdded
from service.api.problems import KNOWN
from service.api.streams import EventStream, client_gone, unless_gone

ANSWERING: Final = Delta | MessageAdded | ChoiceFinished | Finished
SURE: Final = b""  # what a stream yields first: from here on there is an answer

log = logging.getLogger(__name__)


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
    sure = await unless_gone(request, _first(lines))
    return client_gone() if sure is None else EventStream(lines)


async def _first(lines: AsyncGenerator[bytes]) -> bytes:
    return await anext(lines)


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
