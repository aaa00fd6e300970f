"""Renders an answer's events as a response in OpenAI's form, event by event or whole. Knows no request."""

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import count

from service.answers.events import Delta, Event, Finished, Retrieved, Source, Usage
from service.api.streams import sse
from service.openai.completion import extra_of, logprobs_of, reason_of
from service.openai.errors import error_body
from service.openai.responses.response_bodies import (
    IncompleteDetails,
    InputTokens,
    NumberedEvent,
    OutputTokens,
    ResponseBody,
    ResponseChanged,
    ResponseError,
    ResponseUsage,
)
from service.openai.responses.search_item import SearchItem
from service.openai.responses.text_item import TextItem


class ResponseEvents:
    """The events of one response, which grows with them. `keep` gets it and its sources when it has ended."""

    def __init__(
        self,
        response: ResponseBody,
        keep: Callable[[ResponseBody, Sequence[Source]], None],
        *,
        search: SearchItem | None = None,
    ) -> None:
        self._response = response
        self._keep = keep
        self._search = search
        self._numbers = count()
        self._sources: tuple[Source, ...] = ()
        self._item: TextItem | None = None

    async def whole(self, events: AsyncGenerator[Event]) -> ResponseBody:
        """The response when it has ended."""
        async with aclosing(events):
            async for event in events:
                for _ in self._events(event):
                    pass
        return self._response

    def opening(self) -> Iterator[bytes]:
        """The response as it is before the first token."""
        yield self._changed("response.created")
        yield self._changed("response.in_progress")

    def of(self, event: Event) -> Iterator[bytes]:
        """The events that an event of the answer adds, often none."""
        for each in self._events(event):
            yield sse(each.type, each)
        if isinstance(event, Finished):
            yield self._changed(f"response.{self._response.status}")

    def failing(self, error: Exception) -> bytes:
        """The last event of a response that went wrong."""
        if self._item is not None:
            self._item.end("incomplete")
        self._response.status = "failed"
        self._response.error = ResponseError(message=error_body(error).error.message)
        return self._changed("response.failed")

    def _events(self, event: Event) -> Iterator[NumberedEvent]:
        """What happens to items of the output."""
        match event:
            case Retrieved():
                self._sources = event.sources
            case Delta():
                if event.text or event.token:
                    yield from self._said(event)
            case Finished():
                yield from self._ended(event)
            case _:
                pass

    def _said(self, delta: Delta) -> Iterator[NumberedEvent]:
        if self._item is None:
            if self._search:
                yield from self._search.events(self._response.output, self._sources, numbers=self._numbers)
            self._item = TextItem(self._response.output, self._numbers)
            yield from self._item.opening()
        logprobs = logprobs_of([delta])
        yield from self._item.said(delta.text, (logprobs and logprobs.content) or [])

    def _ended(self, finished: Finished) -> Iterator[NumberedEvent]:
        is_cut = reason_of(finished.reason) == "length"
        if finished.text or self._item is None:
            yield from self._said(Delta(finished.text))
        status = "incomplete" if is_cut else "completed"
        if self._item is not None:
            yield from self._item.closing(status, self._search.files(self._sources) if self._search else {})
        response = self._response
        response.status = status
        response.completed_at = None if is_cut else int(time.time())
        response.incomplete_details = IncompleteDetails() if is_cut else None
        response.usage = _usage(finished.usage)
        response.kvweave = extra_of(finished, self._sources)
        self._keep(response, self._sources)

    def _changed(self, kind: str) -> bytes:
        return sse(kind, ResponseChanged(type=kind, sequence_number=next(self._numbers), response=self._response))


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt,
        input_tokens_details=InputTokens(cached_tokens=usage.reused),
        output_tokens=usage.completion,
        output_tokens_details=OutputTokens(),
        total_tokens=usage.prompt + usage.completion,
    )
