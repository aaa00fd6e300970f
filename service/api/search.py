"""POST /v1/search, passages that fit a query; POST /v1/rerank, texts or chunks ordered by how well they answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.answers.answer_request import Lookup
from service.answers.gather import nothing_found, relevance_report
from service.api.caller import By, Caller, unknown
from service.api.fields import WHOLE, ChunkId, CollectionName, Filter, OneOf, Strict, Text, Whole
from service.api.questions import check_length
from service.api.rendering import SourceOut, rendered_passage
from service.reports import RelevanceReport


class SearchRequest(Strict):
    """What to look for."""

    query: str = Field(min_length=1, max_length=1_000_000, examples=["At what temperature does water boil?"])
    collection: CollectionName | None = Field(None, description="All collections, where there is none")
    filter: Filter | None = None
    top_k: Whole = Field(10, ge=1, le=1000)
    neighbors: Whole = Field(0, ge=0, le=10, description="Chunks before and behind each hit that come along")
    mode: Literal["lexical", "vector", "hybrid"] | None = Field(
        None, description="By default hybrid where there is an embedder, else lexical"
    )
    rerank: bool = Field(False, description="Needs a reranker in the settings")


class SearchAnswer(BaseModel):
    """The hits, best first. No `relevance` where nothing was looked for."""

    hits: list[SourceOut]
    relevance: RelevanceReport | None = None
    note: str = Field("", description="A sentence where nothing was found that answers")


class RerankRequest(OneOf):
    """Texts, or chunks, to order by how well they answer."""

    choices = ("documents", "chunk_ids")
    remedy = "give either documents or chunk_ids"

    query: Text = Field(max_length=1_000_000)
    documents: list[Text] = Field(default_factory=list[str], min_length=1, max_length=1000)
    chunk_ids: list[ChunkId] = Field(default_factory=list[str], min_length=1, max_length=1000)
    top_n: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = None


class Ranked(BaseModel):
    """A text or chunk with its score. `index`: its place in the request."""

    index: int
    score: float
    chunk_id: str | None


class RerankAnswer(BaseModel):
    """The texts or chunks, best first."""

    results: list[Ranked]


async def search(by: By, wanted: SearchRequest) -> SearchAnswer:
    """Passages that fit a query best."""
    check_length(by.core.settings, wanted.query, field="query")
    lookup = Lookup(
        wanted.query,
        collections=(wanted.collection,) if wanted.collection else (),
        where=wanted.filter,
        top_k=wanted.top_k,
        neighbors=wanted.neighbors,
        mode=wanted.mode,
        rerank=wanted.rerank,
    )
    found = await by.core.pipeline.search(by.who, lookup)
    shown = [replace(hit.passage, document=by.who.shown_id(hit.passage.document)) for hit in found.hits]
    hits = [rendered_passage(each, hit.score) for each, hit in zip(shown, found.hits, strict=True)]
    relevance = relevance_report(found)
    note = nothing_found(relevance) if relevance and hits and not relevance.found else ""
    return SearchAnswer(hits=hits, relevance=relevance, note=note)


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


def _texts(by: Caller, chunk_ids: Sequence[str]) -> list[str]:
    with by.tenant.catalog.view() as view:
        rows = view.rows_of(chunk_ids)
        texts = {passage.id: passage.text for passage in view.holding(list(rows.values()), by.allowed())}
    for chunk in chunk_ids:
        if chunk not in texts:
            raise unknown("chunk", chunk)
    return [texts[chunk] for chunk in chunk_ids]
