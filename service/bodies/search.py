"""Search and reranking."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.bodies.fields import WHOLE, ChunkId, CollectionName, Filter, OneOf, Strict, Text, Whole


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


class SearchAnswer(BaseModel):
    """The hits, best first."""

    hits: list[SourceOut]


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
