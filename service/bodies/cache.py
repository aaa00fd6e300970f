"""What is stored of chunks, and wishes about it."""

from pydantic import BaseModel, Field

from service.bodies.fields import MOST_LISTED, ChunkId, CollectionName, DocumentId, OneOf, Whole


class CacheChoice(OneOf):
    """Which chunks: of documents, by their ids, or of a collection."""

    choices = ("document_ids", "chunk_ids", "collection")
    remedy = "give exactly one of document_ids, chunk_ids and collection"

    document_ids: list[DocumentId] = Field(default_factory=list[str], min_length=1, max_length=1000)
    chunk_ids: list[ChunkId] = Field(default_factory=list[str], min_length=1, max_length=1000)
    collection: CollectionName = ""


class LookupRequest(CacheChoice):
    """Which chunks, and which page of them."""

    after: Whole = Field(0, ge=0, lt=2**63, description="What the page before gave as `next`")
    limit: Whole = Field(MOST_LISTED, ge=1, le=MOST_LISTED)


class ChunkStateOut(BaseModel):
    """What is stored of a chunk: stored, pending, over budget, unsupported or absent; and where."""

    chunk_id: str
    state: str = Field(examples=["stored"])
    bytes: int
    tier: str = Field(examples=["lmdb"])


class LookupAnswer(BaseModel):
    """What is stored of the chunks. `unknown`: ids that name nothing you may see."""

    chunks: list[ChunkStateOut]
    unknown: list[str]
    next: int | None


class Touched(BaseModel):
    """`chunks` were meant, `blobs` of them were stored and concerned."""

    chunks: int
    blobs: int
    unknown: list[str]
