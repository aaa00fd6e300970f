"""The answers of a catalog: collections, documents, passages, vectors, numbers."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retriever.documents import Json
from retriever.marks import Hashes

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Collection:
    """`rules`: how its documents are cut, `"search": false` where none is ever found, and what else its owner keeps.

    `created`: seconds since the epoch, as the catalog tells it.
    """

    name: str
    rules: Json
    created: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A document that serves. Times are seconds since the epoch."""

    id: str
    collection: str
    title: str
    metadata: Json
    parts: int
    created: float
    updated: float


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk where it stands in a document that serves. `metadata`: the document's, with the chunk's own over it.

    `row` and `chunk` are numbers of this catalog: of the passage, and of the chunk, which `id` names everywhere.
    """

    row: int
    chunk: int
    id: str
    text: str
    document: str
    collection: str
    title: str
    place: int
    name: str
    start: int | None
    page: int | None
    metadata: Json


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk stands in a version of a document, behind which chunk; `before` is empty where it begins it.

    `metadata`, and `before_metadata` of the chunk before: the document's, with the chunk's own over it.
    """

    chunk: str
    collection: str
    metadata: Json
    version: int
    serving: bool
    document: str
    title: str
    place: int
    before: str
    before_metadata: Json | None = None


@dataclass(frozen=True, slots=True)
class FillerPassage:
    """A passage behind which chunks of its kind are captured: `excerpt` of a chunk of a document."""

    document: str
    chunk: str
    title: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class Label:
    """The part of a passage that filters see. `metadata`: the document's, with the chunk's own over it."""

    collection: str
    metadata: Json


@dataclass(frozen=True, slots=True)
class WordMatch:
    """A passage that a search by words finds. `share`: how much of what the query's words tell it has, up to 1."""

    passage: Passage
    score: float
    share: float


@dataclass(frozen=True, slots=True)
class Removal:
    """Ids of chunks that left a document: `gone` from the catalog, `kept` because others hold them."""

    gone: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EmbeddedChunks:
    """Vectors of chunks by one embedder. `rows` rise with every vector that is ever added."""

    rows: Rows
    chunks: Rows
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class MarkEntries:
    """Chunks and the marks by which they are recognised in a text, as columns. Chunks that are too short have none."""

    rows: Rows
    heads: Hashes
    tails: Hashes
    nbytes: Rows

    @classmethod
    def columns(cls, *, rows: ArrayLike, heads: ArrayLike, tails: ArrayLike, nbytes: ArrayLike) -> "MarkEntries":
        """Makes entries from a catalog's columns: signed integers, equally long."""
        columns = [np.asarray(column, dtype=np.int64) for column in (rows, heads, tails, nbytes)]
        if len({column.shape for column in columns}) > 1:
            raise ValueError(f"columns must be equally long, got {[len(column) for column in columns]}")
        return cls(columns[0], columns[1].view(np.uint64), columns[2].view(np.uint64), columns[3])

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, where: Rows) -> "MarkEntries":
        return MarkEntries(self.rows[where], self.heads[where], self.tails[where], self.nbytes[where])

    def without(self, rows: Rows) -> "MarkEntries":
        return self.at(np.flatnonzero(~np.isin(self.rows, rows))) if len(rows) and len(self) else self

    def joined(self, other: "MarkEntries") -> "MarkEntries":
        if not len(other) or not len(self):
            return self if len(self) else other
        return MarkEntries(
            np.concatenate((self.rows, other.rows)),
            np.concatenate((self.heads, other.heads)),
            np.concatenate((self.tails, other.tails)),
            np.concatenate((self.nbytes, other.nbytes)),
        )


@dataclass(frozen=True, slots=True)
class CatalogState:
    """How far a catalog has come: the last numbers given, which never fall, and how many changes it has seen.

    `catalog` identifies it, and changes when a backup is restored.
    """

    catalog: str
    changes: int
    chunks: int
    removed: int
    vectors: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a corpus, when its documents came to serve. `signature`: what tells whether it changed since.

    `base`: the folder from which its name is its path; empty where an older version did not keep it.
    """

    signature: str
    documents: tuple[str, ...]
    base: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """Why not all caches of a collection are stored: `terms` in the words of who set them, `nbytes` that were then."""

    terms: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Documents that serve, their passages, and all chunks, those of staged versions too."""

    documents: int
    passages: int
    chunks: int


@dataclass(frozen=True, slots=True)
class EmbedderEntry:
    """An embedder whose vectors the catalog holds. One serves; another may be filling up to replace it."""

    name: str
    dim: int
    serving: bool
