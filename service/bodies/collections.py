"""Collections and the rules by which their documents are cut."""

from pydantic import BaseModel, Field

from service.bodies.fields import ChunkId, Strict, Whole


class Rules(Strict):
    """How the collection's documents are cut. Of one that is there already they change only future documents."""

    chunk_tokens: Whole = Field(256, ge=16, le=4096, description="Tokens of a chunk at most")
    system: str | None = Field(
        None, max_length=20_000, description="The system prompt that chunks are captured behind; null for kvweave's own"
    )
    embedder: str = Field("", max_length=500, description="Its name; empty for the one in the settings")
    search: bool = Field(
        True,
        description="Whether its chunks are embedded and found; false where another index finds them: "
        "chunk_ids and recognition in a text reuse their caches all the same",
    )
    in_context: bool = Field(
        True,
        description="Whether its chunks are captured behind passages of the collection, and what is before them "
        "in their document: nearer to full prefill, and a deleted document takes the caches of others with it",
    )
    filler: list[ChunkId] | None = Field(
        None,
        max_length=8,
        description="Ids of chunks that its chunks are captured behind, which are then captured anew; null leaves "
        "what there is, an empty list has it chosen",
    )


class FillerOut(BaseModel):
    """A passage that the collection's chunks are captured behind."""

    document_id: str
    chunk_id: str
    title: str


class CollectionOut(BaseModel):
    """A collection with its rules. `documents`: how many serve."""

    name: str
    chunk_tokens: int
    system: str | None
    embedder: str
    search: bool
    in_context: bool
    documents: int
    filler: list[FillerOut]


class CollectionList(BaseModel):
    """The collections in the order of their names."""

    collections: list[CollectionOut]


class CollectionDeleted(BaseModel):
    """A collection that was deleted, and what went with it."""

    name: str
    documents: int
    chunks_removed: int
    chunks_kept: int
    done: bool
