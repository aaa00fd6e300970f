"""What an answer rests on and what it took, as all interfaces tell it."""

import math
import re
from collections.abc import Mapping

from service.answers.events import Source, Usage
from service.api.search import source_of as passage_of
from service.bodies.query import UsageOut
from service.bodies.search import SourceOut

_NO_TOKEN = re.compile(r"[^\w!#$%&'*+.^`|~-]", re.ASCII)


def rendered_source(source: Source) -> SourceOut:
    """A source of an answer: a passage, or a document that came with the request."""
    if source.passage is not None:
        return passage_of(source.passage, source.score)
    return SourceOut(
        chunk_id=source.chunk_id,
        document_id=source.document_id,
        title=source.title,
        score=source.score,
        text=source.text,
        metadata={},
        page=None,
        start=None,
        end=None,
    )


def rendered_usage(usage: Usage) -> UsageOut:
    """What an answer took, in tokens."""
    return UsageOut(
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        reused_tokens=usage.reused,
        recomputed_tokens=usage.recomputed,
    )


def server_timing(timings_ms: Mapping[str, float]) -> str:
    """The value of the header `Server-Timing`."""
    return ", ".join(
        f"{_NO_TOKEN.sub('_', stage) or '_'};dur={milliseconds:.1f}"
        for stage, milliseconds in timings_ms.items()
        if math.isfinite(milliseconds)
    )
