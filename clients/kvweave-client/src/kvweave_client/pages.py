"""How lists come over the wire: entries under a name of their own, and where the next page begins."""

import msgspec

from kvweave_client.answers import ChunkState, Collection, Document, DocumentChunk, Job, JobItem, Model, Ranked, Source


class Hits(msgspec.Struct, frozen=True):
    """The answer to a search."""

    hits: tuple[Source, ...]


class Results(msgspec.Struct, frozen=True):
    """The answer to a reranking."""

    results: tuple[Ranked, ...]


class Models(msgspec.Struct, frozen=True):
    """The models of a service; there is one."""

    data: tuple[Model, ...]


class Collections(msgspec.Struct, frozen=True):
    """All collections at once."""

    collections: tuple[Collection, ...]


class Documents(msgspec.Struct, frozen=True):
    """A page of documents."""

    entries: tuple[Document, ...] = msgspec.field(name="documents")
    next: str | None = None


class Chunks(msgspec.Struct, frozen=True):
    """A page of a document's chunks."""

    entries: tuple[DocumentChunk, ...] = msgspec.field(name="chunks")
    next: int | None = None


class Jobs(msgspec.Struct, frozen=True):
    """A page of jobs."""

    entries: tuple[Job, ...] = msgspec.field(name="jobs")
    next: str | None = None


class Items(msgspec.Struct, frozen=True):
    """A page of a job's uploads."""

    entries: tuple[JobItem, ...] = msgspec.field(name="items")
    next: int | None = None


class States(msgspec.Struct, frozen=True):
    """A page of chunks' states."""

    entries: tuple[ChunkState, ...] = msgspec.field(name="chunks")
    next: int | None = None
