"""A question over HTTP: one answer in JSON, or its events as they happen. Both render the pipeline's one stream."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from fastapi import Request, Response
from pydantic import BaseModel, Field

from service.answers.answer_request import AnswerRequest
from service.answers.events import (
    ChoiceFinished,
    ChunkReport,
    Delta,
    Event,
    Finished,
    Fused,
    Loaded,
    MessageAdded,
    Report,
    Retrieved,
)
from service.answers.whole_answer import WholeAnswer, whole_answer
from service.api.caller import By
from service.api.problems import KNOWN, failure_of, problem_of, request_id_of
from service.api.questions import AskedQuestion, SamplingIn, SecondsGiven, to_answer_request
from service.api.rendering import SourceOut, UsageOut, rendered_source, rendered_usage, timed_answer
from service.api.streams import EventStream, client_gone, sse, unless_gone

log = logging.getLogger(__name__)

Events = AsyncGenerator[Event]


class QueryRequest(AskedQuestion):
    """A question about the documents, or a chat whose last message is one."""

    sampling: SamplingIn | None = None
    stream: bool = Field(False, description="Answer with server-sent events")


class QueryAnswer(BaseModel):
    """The answer and what it rests on."""

    id: str
    answer: str
    finish_reason: Literal["stop", "length", "cancelled"]
    sources: list[SourceOut]
    usage: UsageOut
    report: Report


class RetrievedEvent(BaseModel):
    """The event `retrieved`: what the answer rests on."""

    id: str
    sources: list[SourceOut]


class LoadedEvent(BaseModel):
    """The event `loaded`: where the chunks' caches come from."""

    chunks: tuple[ChunkReport, ...]


class FusedEvent(BaseModel):
    """The event `fused`: the prompt is in place; the first token follows."""

    usage: UsageOut
    report: Report


class TokenEvent(BaseModel):
    """The event `token`: some more of the answer."""

    text: str


async def query(request: Request, wanted: QueryRequest, *, by: By, within_s: SecondsGiven = None) -> Response:
    """Answer a question from the documents, with its sources and a report of how it came about."""
    ask = replace(to_answer_request(by, wanted, sampling=wanted.sampling), within_s=within_s)
    events = by.core.pipeline.answer(ask)
    if wanted.stream:
        opened = await unless_gone(request, _opened(events))
        return EventStream(_streamed(ask, opened, request_id=request_id_of(request.scope))) if opened else client_gone()
    whole = await unless_gone(request, whole_answer(events))
    return client_gone() if whole is None else timed_answer(_answer(ask, whole), whole.end.report.timings_ms)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A stream whose first event is there: what is wrong with the request has shown itself."""

    first: Event
    others: Events


async def _opened(events: Events) -> _Opened:
    """The stream with its first event. It is closed again if it ends before it began."""
    is_open = False
    try:
        opened = _Opened(await anext(events), events)
        is_open = True
        return opened
    finally:
        if not is_open:
            await events.aclose()


def _answer(ask: AnswerRequest, whole: WholeAnswer) -> QueryAnswer:
    end = whole.end
    assert end.reason != "tool_calls", "tools are not asked for here"
    return QueryAnswer(
        id=ask.id,
        answer=whole.text,
        finish_reason=end.reason,
        sources=[rendered_source(each) for each in whole.sources],
        usage=rendered_usage(end.usage),
        report=end.report,
    )


async def _streamed(ask: AnswerRequest, opened: _Opened, *, request_id: str) -> AsyncGenerator[bytes]:
    whole = WholeAnswer()
    async with aclosing(opened.others):
        try:
            async for event in _all_of(opened):
                whole.add(event)
                for name, content in _rendered(ask, event):
                    yield sse(name, content)
        except Exception as error:
            yield sse("error", problem_of(failure_of(error), request_id))
            if not isinstance(error, KNOWN):
                raise
            log.warning("an answer ended early", extra={"reason": type(error).__name__})
            return
    yield sse("done", _answer(ask, whole))


async def _all_of(opened: _Opened) -> AsyncIterator[Event]:
    yield opened.first
    async for event in opened.others:
        yield event


def _rendered(ask: AnswerRequest, event: Event) -> Sequence[tuple[str, BaseModel]]:
    """The events on the wire. What was held back to the end is a token like the others."""
    match event:
        case Retrieved():
            return [("retrieved", RetrievedEvent(id=ask.id, sources=[rendered_source(each) for each in event.sources]))]
        case Loaded():
            return [("loaded", LoadedEvent(chunks=event.chunks))]
        case Fused():
            return [("fused", FusedEvent(usage=rendered_usage(event.usage), report=event.report))]
        case ChoiceFinished() | MessageAdded():  # of several answers and of tools, which are not asked for here
            return []
        case Delta() | Finished():
            return [("token", TokenEvent(text=event.text))] if event.text else []
