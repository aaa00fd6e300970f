"""POST /v1/query: one answer in JSON, or its events as they happen (SSE); and the end of a session on all replicas."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from fastapi import Request, Response
from pydantic import BaseModel, Field

from blend.engine.engine import ChoiceEnded, MessagePiece
from service.answers.answer_request import AnswerRequest, session_name
from service.answers.events import (
    ChunkReport,
    Delta,
    Event,
    Finished,
    Fused,
    Loaded,
    Report,
    Retrieved,
    WholeAnswer,
    whole_answer,
)
from service.api.caller import By
from service.api.fields import Name
from service.api.problems import failure_of, problem_of, request_id_of
from service.api.questions import AskedQuestion, SamplingIn, SecondsGiven, to_answer_request
from service.api.rendering import SourceOut, UsageOut, rendered_source, rendered_usage, timed_answer
from service.api.streams import client_gone, sse, streamed, unless_gone
from service.errors import Unavailable
from service.truth.peers import Passed


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


def end_session(by: By, name: Name) -> Response:
    """Keep nothing of a session: not what its turns computed, and nothing that is on its way."""
    tenant, name = by.who.tenant, session_name(by.who, name)
    by.core.model.end_session(tenant, name)
    if not by.core.tenants.peers.passed(Passed(tenant, name)):
        raise Unavailable("the session has ended here, but not on all replicas yet: ask again")
    return Response(status_code=204)


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
        return await streamed(request, events, form=_Stream(ask, request_id_of(request.scope)), begins=Event)
    whole = await unless_gone(request, whole_answer(events))
    return client_gone() if whole is None else timed_answer(_answer(ask, whole), whole.end.report.timings_ms)


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


class _Stream:
    """See `StreamForm`."""

    def __init__(self, ask: AnswerRequest, request_id: str) -> None:
        self._ask = ask
        self._request_id = request_id
        self._whole = WholeAnswer()

    def opening(self) -> Iterator[bytes]:
        yield from ()

    def of(self, event: Event) -> Iterator[bytes]:
        self._whole.add(event)
        for name, content in _rendered(self._ask, event):
            yield sse(name, content)

    def ending(self) -> Iterator[bytes]:
        yield sse("done", _answer(self._ask, self._whole))

    def failing(self, error: Exception) -> bytes:
        return sse("error", problem_of(failure_of(error), self._request_id))


def _rendered(ask: AnswerRequest, event: Event) -> Sequence[tuple[str, BaseModel]]:
    """The events on the wire. What was held back to the end is a token like the others."""
    match event:
        case Retrieved():
            return [("retrieved", RetrievedEvent(id=ask.id, sources=[rendered_source(each) for each in event.sources]))]
        case Loaded():
            return [("loaded", LoadedEvent(chunks=event.chunks))]
        case Fused():
            return [("fused", FusedEvent(usage=rendered_usage(event.usage), report=event.report))]
        case ChoiceEnded() | MessagePiece():  # of several answers and of tools, which are not asked for here
            return []
        case Delta() | Finished():
            return [("token", TokenEvent(text=event.text))] if event.text else []
