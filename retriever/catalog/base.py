"""What a catalog is: changes and views, each one transaction. Another database behind it passes the same tests.

A `View` sees one committed state, however long it is held; a `Change` is seen by everybody at its end, or by nobody.
Documents have one id over all collections. A version is staged, and serves later or at once; of one id one serves.
Only what serves is found, listed and told of. The same text in two documents is one chunk, and goes with the last of
them. What was put in but is not cut yet waits as an upload. It is live until a state ends it, which nothing undoes; of
one document the upload that was accepted last counts, a file's documents from when the file was.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retriever.catalog.upload_types import Job, NewUpload, Upload
from retriever.documents import Document, Json
from retriever.filters import EVERYTHING, Condition

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Collection:
    """`rules`: how its documents are cut, `"search": false` where none is ever found, and what else its owner keeps."""

    name: str
    rules: Json


@dataclass(frozen=True, slots=True)
class Entry:
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
class Worded:
    """What a search by words finds. `share`: how much of what the query's words tell stands in the passage, to 1."""

    passage: Passage
    score: float
    share: float


@dataclass(frozen=True, slots=True)
class Removal:
    """Ids of chunks that left a document: `gone` from the catalog, `kept` because others hold them."""

    gone: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of chunks by one embedder. `rows` rise with every vector that is ever added."""

    rows: Rows
    chunks: Rows
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class Marked:
    """By what chunks are recognised in a text. Chunks that are too short have no marks."""

    chunks: Rows
    heads: Rows
    tails: Rows
    nbytes: Rows


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a catalog has come: the last numbers given, which never fall, and how many changes it has seen.

    `catalog` tells it from others, and from what it was before a backup was restored.
    """

    catalog: str
    changes: int
    chunks: int
    removed: int
    vectors: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a corpus, when its documents came to serve. `signature`: what tells whether it changed since."""

    signature: str
    documents: tuple[str, ...]


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
    """Whose vectors the catalog holds. One serves; another may be on its way to take its place."""

    name: str
    dim: int
    serving: bool


class View(Protocol):
    """One committed state."""

    def standing(self) -> Standing: ...
    def collection(self, name: str) -> Collection | None: ...
    def collections(self) -> list[Collection]: ...
    def unsearched(self) -> tuple[str, ...]:
        """Names of those that are kept without search."""
        ...

    def prefix(self, collection: str, *, model: str) -> tuple[int, ...] | None:
        """The token ids that a model's captures of this collection stand behind."""
        ...

    def document(self, document: str) -> Entry | None: ...

    def serves(self, document: Document, *, collection: str) -> bool:
        """Is it there already, just so, and was not patched since?"""
        ...

    def documents(self, allowed: Condition, *, after: str = "", limit: int = 100) -> list[Entry]:
        """In the order of their ids, from behind `after` on."""
        ...

    def count(self, allowed: Condition) -> int:
        """How many documents."""
        ...

    def passages(
        self, document: str, *, first: int = 0, limit: int = 1 << 40, allowed: Condition = EVERYTHING
    ) -> list[Passage]:
        """A document's, in its order: of the places from `first` on, so many, those that fit."""
        ...

    def holding(self, chunks: Sequence[int], allowed: Condition) -> list[Passage]:
        """Of each of these chunks the oldest passage that fits, in the order of `chunks`."""
        ...

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The numbers of chunks that are known."""
        ...

    def lexical(self, query: str, allowed: Condition, *, limit: int, within: Condition = EVERYTHING) -> list[Worded]:
        """The passages that fit best by BM25, best first, each chunk once.

        How rare a word is, and how long a passage, is counted `within`: no score tells of what else there is.
        """
        ...

    def chunks_of(self, allowed: Condition) -> Rows:
        """The chunks of what fits, ascending."""
        ...

    def oldest_of(self, allowed: Condition) -> Rows:
        """(passage, chunk) for the chunks of what fits, in the order of their oldest passages that fit.

        Numbers of chunks tell whether a text was there before, perhaps in what does not fit; this order does not.
        """
        ...

    def texts(self, chunks: Sequence[int]) -> dict[int, str]: ...
    def marked_after(self, chunk: int) -> Marked: ...

    def removed_after(self, row: int) -> Rows:
        """The chunks that went since the standing's `removed` was this."""
        ...

    def embedders(self) -> list[EmbedderEntry]: ...
    def embedded_after(self, row: int, *, embedder: str, limit: int) -> Embedded: ...

    def vectors(self, ids: Sequence[str], *, embedder: str) -> dict[str, Vectors]:
        """Those that are known of these chunks."""
        ...

    def without_vector(self, after: int, *, embedder: str, limit: int) -> list[tuple[int, str, str]]:
        """Chunks (row, id, text) that lack one, in the order of their rows; not those that no search may find."""
        ...

    def counts(self) -> Counts: ...

    def chunk_ids(self, after: str, limit: int) -> list[str]:
        """Of all chunks, those of staged versions too, in the order of their ids, from behind `after` on."""
        ...

    def sources(self, collection: str) -> dict[str, SourceFile]:
        """The files that were put into it, by their names."""
        ...

    def limit(self, collection: str, *, model: str) -> Limit | None:
        """What stopped a model's caches of this collection, if anything did."""
        ...

    def unswept(self, limit: int) -> list[tuple[int, str]]:
        """Removed chunks (row, id) whose caches are not known to be gone, oldest first, but for chunks that are again.

        The same id may come twice. Where there are none, all up to the standing's `removed` may be called swept.
        """
        ...

    def job(self, job: str) -> Job | None: ...

    def jobs(self, *, after: str = "", limit: int = 100) -> list[Job]:
        """Newest first, from behind `after` on; none where that is not known."""
        ...

    def uploads(self, job: str, *, after: int = 0, limit: int = 100) -> list[Upload]:
        """In the order of their numbers, from behind `after` on."""
        ...

    def live(self, limit: int) -> list[Upload]:
        """In the order of their numbers."""
        ...

    def content(self, number: int) -> bytes | None:
        """Of an upload that is live."""
        ...

    def upload_of(self, document: str) -> Upload | None:
        """The one that counts: the last that was accepted."""
        ...


class Change(Protocol):
    """One transaction: all of it happens, or nothing."""

    def put_collection(self, collection: Collection) -> None:
        """Make it, or give it other rules; its documents stay as they were cut."""
        ...

    def delete_collection(self, name: str) -> Removal:
        """With all its documents, those that are staged too; its live uploads end as deleted."""
        ...

    def keep_prefix(self, collection: str, *, model: str, ids: Sequence[int]) -> tuple[int, ...]:
        """The first that was ever kept for both; it never changes."""
        ...

    def put(self, documents: Sequence[Document], *, collection: str) -> Removal:
        """Make them serve. A document that is there already, just so, is left alone."""
        ...

    def stage(self, document: Document, *, collection: str) -> int:
        """Keep a version that does not serve yet; its number."""
        ...

    def serve(self, version: int) -> Removal:
        """In the place of the one that served so far. Raises DocumentError where the version is not there."""
        ...

    def drop(self, version: int) -> Removal:
        """Of a version that never served. One that is not there is dropped."""
        ...

    def drop_orphans(self) -> Removal:
        """Of versions that were staged for no live upload: whoever wanted to serve them was killed."""
        ...

    def patch(self, document: str, *, metadata: Json) -> Entry | None:
        """Lay metadata over what is there; null takes a field away. None where there is no such document."""
        ...

    def delete(self, documents: Sequence[str]) -> Removal:
        """Every version of them; their live uploads, in whatever collection, end as deleted.

        So do those that come out of files which are live now, when they are expanded.
        """
        ...

    def purge(self) -> None:
        """Let the index forget the words of what was deleted, which it does by itself only some day. Takes a while."""
        ...

    def add_embedder(self, name: str, *, dim: int) -> None:
        """It serves at once if there is nothing to embed yet."""
        ...

    def serve_embedder(self, name: str) -> None:
        """From now on; the vectors of all others are removed."""
        ...

    def put_vectors(self, ids: Sequence[str], vectors: Vectors, *, embedder: str) -> None:
        """Of chunks that are known; others, and those that have one, are left out."""
        ...

    def accept(self, job: str, uploads: Sequence[NewUpload]) -> list[Upload]:
        """Keep them, waiting, in a job that is new or has others already; as they stand then, in the same order.

        Older live uploads of the same documents end as superseded. Raises DocumentError for names that cannot be kept.
        """
        ...

    def expand(self, number: int, uploads: Sequence[NewUpload]) -> bool:
        """A file became documents: they are accepted in its job, in its place, and it is ready, without chunks.

        Those of which a later upload is live or ready are superseded at once, those that were deleted since the file
        was accepted are deleted. False, and nothing is done, where the file is not live.
        """
        ...

    def advance(self, upload: Upload) -> bool:
        """Write its state, version, counts and detail. False, and nothing is written, where it is not live any more.

        Its version so far is dropped if another takes its place, and the given one if it ends otherwise than ready;
        what serves stays. What was staged for an upload that is not live any more is the caller's to drop.
        """
        ...

    def cancel(self, job: str) -> int:
        """Its live uploads end as cancelled: how many. What they staged is dropped, as with every such end."""
        ...

    def forget_uploads(self, before: float) -> int:
        """Of jobs that are over and did not change since then: how many jobs. Documents stay."""
        ...

    def put_source(self, collection: str, name: str, *, source: SourceFile) -> None:
        """Remember a file, in the place of what it was before."""
        ...

    def forget_source(self, collection: str, name: str) -> None:
        """Its documents stay."""
        ...

    def put_limit(self, collection: str, limit: Limit | None, *, model: str) -> None:
        """Remember it, or that there is none any more."""
        ...

    def swept(self, row: int) -> None:
        """The caches of all chunks that were removed up to this row are gone, but for chunks that are again."""
        ...


class Catalog(Protocol):
    """Of one tenant. Safe for threads; other processes may have the same one open."""

    def view(self) -> AbstractContextManager[View]: ...
    def change(self) -> AbstractContextManager[Change]: ...

    def empty_log(self) -> bool:
        """Overwrite what was deleted wherever a copy of it may be; whether that could be done just now."""
        ...

    def close(self) -> None: ...
