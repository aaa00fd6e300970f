"""Sources, usage and timings (Server-Timing) in JSON, as all interfaces tell them; bodies filled by fields' names."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from fastapi import Response
from pydantic import BaseModel

from retriever.types import Passage
from service.answers.events import Source, Usage

B = TypeVar("B", bound=BaseModel)

_NO_TOKEN = re.compile(r"[^\w!#$%&'*+.^`|~-]", re.ASCII)


class UsageOut(BaseModel):
    """What an answer took, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    reused_tokens: int
    recomputed_tokens: int


class SourceOut(BaseModel):
    """A passage. `start` and `end`: characters of the document's text, where it was cut from one.

    A document that came with the request is named by its own id, and by a chunk's where its text is one.
    """

    chunk_id: str
    document_id: str
    title: str
    score: float
    text: str
    metadata: dict[str, object]
    page: int | None
    start: int | None
    end: int | None


def rendered(body: type[B], found: object, **others: object) -> B:
    """The body of what was found, by fields of the same names, and of other fields."""
    same = {name: getattr(found, name) for name in body.model_fields if hasattr(found, name)}
    return body.model_validate(same | others)


def rendered_passage(passage: Passage, score: float) -> SourceOut:
    return rendered(
        SourceOut, passage, chunk_id=passage.id, document_id=passage.document, score=score, end=end_of(passage)
    )


def end_of(passage: Passage) -> int | None:
    """The first character behind a passage in its document's text, where it was cut from one."""
    return None if passage.start is None else passage.start + len(passage.text)


def rendered_source(source: Source) -> SourceOut:
    """A source of an answer: a passage, or a document that came with the request."""
    if source.passage is not None:
        return rendered_passage(replace(source.passage, document=source.document_id), source.score)
    return rendered(SourceOut, source, metadata={}, page=None, start=None, end=None)


def rendered_usage(usage: Usage) -> UsageOut:
    return UsageOut(
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        reused_tokens=usage.reused,
        recomputed_tokens=usage.recomputed,
    )


def timed_answer(answer: BaseModel, timings_ms: Mapping[str, float]) -> Response:
    """The whole answer, with what its stages took in a header."""
    headers = {"Server-Timing": server_timing(timings_ms)}
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)


def server_timing(timings_ms: Mapping[str, float]) -> str:
    return ", ".join(
        f"{_NO_TOKEN.sub('_', stage) or '_'};dur={milliseconds:.1f}"
        for stage, milliseconds in timings_ms.items()
        if math.isfinite(milliseconds)
    )
