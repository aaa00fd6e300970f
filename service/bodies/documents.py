"""Documents as they are put in and listed."""

from pydantic import BaseModel, Field, field_validator

from service.bodies.fields import (
    DEFAULT_COLLECTION,
    CollectionName,
    DocumentId,
    Metadata,
    Name,
    OneOf,
    Strict,
    Text,
    Title,
)


class ChunkIn(Strict):
    """A chunk that is kept verbatim. Its metadata is laid over the document's."""

    id: Name = Field("", description="What you call it; it comes back as `name`")
    text: Text = Field(examples=["Water boils at 100 °C at sea level."])
    metadata: Metadata = Field(default_factory=dict[str, object])


class DocumentIn(OneOf):
    """A document: a text that is cut here, or chunks that you cut."""

    choices = ("text", "chunks")
    remedy = "a document has either text or chunks: give exactly one of them"

    text: Text = Field("", examples=["Water boils at 100 °C at sea level."])
    chunks: list[ChunkIn] = Field(default_factory=list[ChunkIn], min_length=1, max_length=100_000)
    title: Title = ""
    metadata: Metadata = Field(default_factory=dict[str, object])


class NewDocument(DocumentIn):
    """A document; without an id it gets one that is a digest of its content."""

    id: DocumentId | None = None


class Replacement(DocumentIn):
    """The whole of a document. Without a collection it stays where it is; a new one goes to `default`."""

    collection: CollectionName | None = None


class OneDocument(NewDocument):
    """One document to put in, and where to."""

    collection: CollectionName = DEFAULT_COLLECTION


class Upload(Strict):
    """Documents to put in. One that is there already, just so, is left alone; another of its id is replaced."""

    documents: list[NewDocument] = Field(min_length=1, max_length=100_000)
    collection: CollectionName = DEFAULT_COLLECTION

    @field_validator("documents")
    @classmethod
    def _has_each_once(cls, documents: list[NewDocument]) -> list[NewDocument]:
        seen: set[str] = set()
        for document in documents:
            if document.id is not None and document.id in seen:
                raise ValueError(f"the id {document.id[:80]!r} is there twice: a request has each document once")
            seen.add(document.id or "")
        return documents


class FileUpload(Strict):
    """Files to put in: text, Markdown, HTML, PDF, JSON or JSON lines, as the suffix of a name says."""

    files: list[bytes] = Field(min_length=1, max_length=1000, description="Each with its name")
    collection: CollectionName = DEFAULT_COLLECTION
    metadata: Metadata = Field(default_factory=dict[str, object], description="Laid over what the files say")


class Accepted(BaseModel):
    """What was put in is safe, and is computed in this job. `files`: those whose documents are not known yet.

    `refused`: files that were left out, each with the reason.
    """

    job_id: str = Field(examples=["a1b2c3-5f1d0c2ab7"])
    documents: list[str] = Field(examples=[["report/7"]])
    files: list[str] = Field(examples=[[]])
    refused: list[str] = Field(default_factory=list[str], examples=[["'a.txt' is empty: leave it out"]])


class Patch(Strict):
    """Metadata to lay over what is there; null takes a field away. Nothing is computed again."""

    metadata: Metadata = Field(examples=[{"year": 2025, "draft": None}])


class DocumentOut(BaseModel):
    """A document that serves. Times are seconds since 1970."""

    id: str
    collection: str
    title: str
    metadata: dict[str, object]
    chunks: int = Field(description="How many it has")
    created: float
    updated: float


class DocumentPage(BaseModel):
    """Documents in the order of their ids. `next`: what to give as `after` for the following page; null at the end."""

    documents: list[DocumentOut]
    next: str | None


class ChunkOut(BaseModel):
    """A chunk where it stands, and what is stored of it: stored, pending, over budget, unsupported or absent."""

    chunk_id: str
    place: int
    name: str
    text: str
    metadata: dict[str, object]
    page: int | None
    start: int | None
    end: int | None
    state: str = Field(examples=["stored"])
    bytes: int
    tier: str = Field(examples=["lmdb"])


class ChunkPage(BaseModel):
    """Chunks of a document, in its order."""

    chunks: list[ChunkOut]
    next: int | None


class Deleted(BaseModel):
    """A deleted document. `chunks_kept`: others hold them. `done`: every tier answers that the other ones are gone."""

    id: str
    chunks_removed: list[str]
    chunks_kept: list[str]
    done: bool
