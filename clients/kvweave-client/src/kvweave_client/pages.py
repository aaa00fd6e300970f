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
    """Of a search."""

    hits: tuple[Source, ...]


class Results(msgspec.Struct, frozen=True):
    """Of reranking."""

    results: tuple[Ranked, ...]


class Models(msgspec.Struct, frozen=True):
    """There is one."""

    data: tuple[Model, ...]


class Collections(msgspec.Struct, frozen=True):
    """All at once."""

    collections: tuple[Collection, ...]


class Documents(msgspec.Struct, frozen=True):
    """A page."""

    documents: tuple[Document, ...]
    next: str | None = None

    def page(self) -> Page[Document]:
        """As all pages are."""
        return Page(self.documents, self.next)


class Chunks(msgspec.Struct, frozen=True):
    """A page."""

    chunks: tuple[DocumentChunk, ...]
    next: int | None = None

    def page(self) -> Page[DocumentChunk]:
        """As all pages are."""
        return Page(self.chunks, self.next)


class Jobs(msgspec.Struct, frozen=True):
    """A page."""

    jobs: tuple[Job, ...]
    next: str | None = None

    def page(self) -> Page[Job]:
        """As all pages are."""
        return Page(self.jobs, self.next)


class Items(msgspec.Struct, frozen=True):
    """A page of a job's uploads."""

    items: tuple[JobItem, ...]
    next: int | None = None

    def page(self) -> Page[JobItem]:
        """As all pages are."""
        return Page(self.items, self.next)


class States(msgspec.Struct, frozen=True):
    """A page of a lookup."""

    chunks: tuple[ChunkState, ...]
    next: int | None = None

    def page(self) -> Page[ChunkState]:
        """As all pages are."""
        return Page(self.chunks, self.next)
