"""Search and reranking over HTTP."""

from collections.abc import Sequence
from dataclasses import replace

from retriever.types import Passage
from service.answers.answer_request import Lookup
from service.api.answer_request import check_length
from service.api.caller import By, Caller, unknown
from service.bodies.search import Ranked, RerankAnswer, RerankRequest, SearchAnswer, SearchRequest, SourceOut


async def search(by: By, wanted: SearchRequest) -> SearchAnswer:
    """Passages that fit a query best."""
    check_length(by.core.settings, wanted.query, field="query")
    lookup = Lookup(
        wanted.query,
        collection=wanted.collection or "",
        where=wanted.filter,
        top_k=wanted.top_k,
        neighbors=wanted.neighbors,
        mode=wanted.mode,
        rerank=wanted.rerank,
    )
    hits = await by.core.pipeline.search(by.who, lookup)
    return SearchAnswer(
        hits=[
            source_of(replace(hit.passage, document=by.who.shown_id(hit.passage.document)), hit.score) for hit in hits
        ]
    )


def rerank(by: By, wanted: RerankRequest) -> RerankAnswer:
    """Order texts by how well they answer."""
    check_length(by.core.settings, wanted.query, field="query")
    texts = wanted.documents or _texts(by, wanted.chunk_ids)
    scores = by.tenant.library.rerank(wanted.query, texts)
    order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
    return RerankAnswer(
        results=[
            Ranked(index=index, score=scores[index], chunk_id=wanted.chunk_ids[index] if wanted.chunk_ids else None)
            for index in order[: wanted.top_n]
        ]
    )


def source_of(passage: Passage, score: float) -> SourceOut:
    """A passage as answers show it."""
    return SourceOut(
        chunk_id=passage.id,
        document_id=passage.document,
        title=passage.title,
        score=score,
        text=passage.text,
        metadata=dict(passage.metadata),
        page=passage.page,
        start=passage.start,
        end=None if passage.start is None else passage.start + len(passage.text),
    )


def _texts(by: Caller, chunk_ids: Sequence[str]) -> list[str]:
    with by.tenant.catalog.view() as view:
        rows = view.rows_of(chunk_ids)
        texts = {passage.id: passage.text for passage in view.holding(list(rows.values()), by.allowed())}
    for chunk in chunk_ids:
        if chunk not in texts:
            raise unknown("chunk", chunk)
    return [texts[chunk] for chunk in chunk_ids]
