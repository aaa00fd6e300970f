"""How lists come over the wire: entries under a name of their own, and where the next page begins."""

import msgspec

from kvweave_client.answers import (
    ChunkState,
    Collection,
    Document,
    DocumentChunk,
    Job,
    JobItem,
    Model,
    Ranked,
    Source,
)
from kvweave_client.requests import Page


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

    documents: tuple[Document, ...]
    next: str | None = None

    def page(self) -> Page[Document]:
        """The documents in the form of all pages."""
        return Page(self.documents, self.next)


class Chunks(msgspec.Struct, frozen=True):
    """A page of a document's chunks."""

    chunks: tuple[DocumentChunk, ...]
    next: int | None = None

    def page(self) -> Page[DocumentChunk]:
        """The chunks in the form of all pages."""
        return Page(self.chunks, self.next)


class Jobs(msgspec.Struct, frozen=True):
    """A page of jobs."""

    jobs: tuple[Job, ...]
    next: str | None = None

    def page(self) -> Page[Job]:
        """The jobs in the form of all pages."""
        return Page(self.jobs, self.next)


class Items(msgspec.Struct, frozen=True):
    """A page of a job's uploads."""

    items: tuple[JobItem, ...]
    next: int | None = None

    def page(self) -> Page[JobItem]:
        """The uploads in the form of all pages."""
        return Page(self.items, self.next)


class States(msgspec.Struct, frozen=True):
    """A page of chunks' states."""

    chunks: tuple[ChunkState, ...]
    next: int | None = None

    def page(self) -> Page[ChunkState]:
        """The chunks' states in the form of all pages."""
        return Page(self.chunks, self.next)
