"""What an answer rests on and how it came about, as all interfaces tell it."""

from service.api.models.query import ChunkReportOut, ReportOut, UsageOut
from service.api.models.search import SourceOut
from service.api.search import source_of as passage_of
from service.pipeline.events import ChunkReport, Report, Source, Usage


def report_of(report: Report) -> ReportOut:
    """How the answer came about."""
    return ReportOut(
        policy=report.policy,
        ratio=report.ratio,
        chunks=[chunk_of(each) for each in report.chunks],
        dropped=list(report.dropped),
        timings_ms=report.timings_ms,
    )


def source_of(source: Source) -> SourceOut:
    """A passage, or a document that came with the request."""
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


def chunk_of(chunk: ChunkReport) -> ChunkReportOut:
    """Where its keys and values came from."""
    return ChunkReportOut(
        chunk_id=chunk.chunk_id,
        source=chunk.source,
        miss_reason=None if chunk.miss_reason is None else str(chunk.miss_reason),
        tokens=chunk.tokens,
        recomputed=chunk.recomputed,
        bytes=chunk.nbytes,
    )


def usage_of(usage: Usage) -> UsageOut:
    """In tokens."""
    return UsageOut(
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        reused_tokens=usage.reused,
        recomputed_tokens=usage.recomputed,
    )
