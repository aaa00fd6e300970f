"""Renders an answer's events as a response in OpenAI's form, event by event or whole. Knows no request."""

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing

from blend.engine.engine import MessagePiece
from service.answers.events import Delta, Event, Finished, Retrieved, Source, Usage
from service.api.streams import sse
from service.openai.answer_bodies import AnsweredFunction, CallDelta, MessageDelta
from service.openai.completion import extra_of, logprobs_of, reason_of
from service.openai.errors import error_body
from service.openai.responses.response_bodies import (
    IncompleteDetails,
    InputTokens,
    OutputTokens,
    ResponseBody,
    ResponseError,
    ResponseUsage,
    StreamEvent,
)
from service.openai.responses.response_items import CallItem, EventNumbers, SearchItem, TextItem


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
        self._numbers = EventNumbers()
        self._sources: tuple[Source, ...] = ()
        self._text: TextItem | None = None
        self._calls: dict[int, CallItem] = {}  # by their numbers
        self._open: TextItem | CallItem | None = None  # the item that came last

    async def whole(self, events: AsyncGenerator[Event]) -> ResponseBody:
        async with aclosing(events):
            async for event in events:
                for _ in self._events(event):
                    pass
        return self._response

    def opening(self) -> Iterator[bytes]:
        """The response as it is before the first token."""
        yield self._changed("created")
        yield self._changed("in_progress")

    def of(self, event: Event) -> Iterator[bytes]:
        """The events that an event of the answer adds, often none."""
        for each in self._events(event):
            yield sse(each.type, each)

    def ending(self) -> Iterator[bytes]:
        """The whole response."""
        yield self._changed(self._response.status)

    def failing(self, error: Exception) -> bytes:
        """The last event of a response that went wrong."""
        if self._open is not None:
            self._open.end("incomplete")
        self._response.status = "failed"
        self._response.error = ResponseError(message=error_body(error).error.message)
        return self._changed("failed")

    def _events(self, event: Event) -> Iterator[StreamEvent]:
        """What happens to items of the output."""
        match event:
            case Retrieved():
                self._sources = event.sources
            case Delta():
                if event.text or event.token:
                    yield from self._said(event)
            case MessagePiece():
                added = MessageDelta.model_validate(event.delta)
                if added.content:
                    yield from self._said(Delta(added.content))
                for call in added.tool_calls or ():
                    yield from self._called(call)
            case Finished():
                yield from self._ended(event)
            case _:
                pass

    def _said(self, delta: Delta) -> Iterator[StreamEvent]:
        if self._text is None:
            yield from self._before_item()
            files = self._search.files(self._sources) if self._search else {}
            self._open = self._text = TextItem(self._response.output, self._numbers, files=files)
            yield from self._text.opening()
        logprobs = logprobs_of([delta])
        yield from self._text.said(delta.text, (logprobs and logprobs.content) or [])

    def _called(self, added: CallDelta) -> Iterator[StreamEvent]:
        function = added.function or AnsweredFunction()
        call = self._calls.get(added.index)
        if call is None:
            yield from self._before_item()
            call = CallItem(
                self._response.output,
                self._numbers,
                call_id=added.id or f"call_{added.index}",
                name=function.name or "",
            )
            self._open = self._calls[added.index] = call
            yield from call.opening()
        if function.arguments:
            yield from call.said(function.arguments)

    def _before_item(self) -> Iterator[StreamEvent]:
        """The search before the first item, and the end of the item before."""
        if self._search and not self._response.output:
            yield from self._search.events(self._response.output, self._sources, numbers=self._numbers)
        if self._open is not None:
            yield from self._open.closing("completed")

    def _ended(self, finished: Finished) -> Iterator[StreamEvent]:
        is_cut = reason_of(finished.reason) == "length"
        if finished.text or self._open is None:
            yield from self._said(Delta(finished.text))
        status = "incomplete" if is_cut else "completed"
        if self._open is not None:
            yield from self._open.closing(status)
        response = self._response
        response.status = status
        response.completed_at = None if is_cut else int(time.time())
        response.incomplete_details = IncompleteDetails() if is_cut else None
        response.usage = _usage(finished.usage)
        response.kvweave = extra_of(finished, self._sources)
        self._keep(response, self._sources)

    def _changed(self, kind: str) -> bytes:
        event = self._numbers.event(kind, response=self._response)
        return sse(event.type, event)


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt,
        input_tokens_details=InputTokens(cached_tokens=usage.reused),
        output_tokens=usage.completion,
        output_tokens_details=OutputTokens(),
        total_tokens=usage.prompt + usage.completion,
    )
