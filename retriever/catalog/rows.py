"""Queries that a catalog's parts share; refuses bad document ids and metadata, leaves out damaged texts; digests."""

import json
import logging
from collections.abc import Sequence
from typing import Final, cast

from blake3 import blake3

from retriever.catalog.connection import CatalogConnection
from retriever.documents import Document, Json, chunk_id_of
from retriever.errors import CatalogError, DocumentError
from retriever.types import DocumentRow, Passage
from retriever.upload_types import Job, QueuedUpload, UploadState

log = logging.getLogger(__name__)

REMEDY = "it is damaged, restore it from a backup"

PASSAGES = """
SELECT p.row, p.chunk, c.id, CAST(c.text AS BLOB),
    d.id, l.collection, d.title, p.place, p.name, p.start, p.page, l.metadata
FROM passages p JOIN chunks c ON c.row = p.chunk JOIN documents d ON d.row = p.document JOIN labels l ON l.row = p.label
WHERE d.serving = 1 AND
"""

ENTRIES = """
SELECT d.id, l.collection, d.title, l.metadata, d.parts, d.created, d.updated
FROM documents d JOIN labels l ON l.row = d.label WHERE d.serving = 1 AND
"""

LIVE: Final = "state IN ('waiting', 'computing')"  # to the letter as the indexes of live uploads say it

_UPLOADS: Final = """
SELECT u.row, j.id, u.document, u.collection, u.name, u.state, u.version, u.chunks, u.stored, u.over_budget,
    u.unsupported, u.detail, u.created, u.updated
"""
_SUMS: Final = ", ".join(
    [
        *(f"count(*) FILTER (WHERE u.state = '{state}')" for state in UploadState),
        *(f"CAST(coalesce(sum(u.{each}), 0) AS BIGINT)" for each in ("chunks", "stored", "over_budget", "unsupported")),
    ]
)


def loads(text: str) -> Json:
    """The object that `dumps` wrote. Raises CatalogError for what it cannot have written."""
    try:
        return cast(Json, json.loads(text))
    except ValueError:
        raise CatalogError(f"the catalog holds metadata that are damaged: {REMEDY}") from None


def dumps(value: Json) -> str:
    """The JSON of an object, one text for equal objects."""
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(f"metadata must be what JSON can say: {error}") from error
    return text


def passages(connection: CatalogConnection, where: str, *, values: Sequence[object]) -> list[Passage]:
    """The passages that serve and fit `where`, which is of this package, never of a user, but for damaged texts."""
    found: list[Passage] = []
    for row, chunk, name, data, *others, metadata in connection.execute(PASSAGES + where, tuple(values)):
        text = sound_text(name, data)
        if text is not None:
            found.append(Passage(row, chunk, name, text, *others, metadata=loads(metadata)))
    return found


def sound_text(chunk: str, data: bytes) -> str | None:
    """The text of a chunk, whose id is its digest; None where one of them is not what was put in."""
    if chunk_id_of(data or b"") == chunk:
        return data.decode()
    log.error("a text is damaged and not served: put its document in again", extra={"chunk": chunk})
    return None


def entries(connection: CatalogConnection, where: str, *, values: Sequence[object]) -> list[DocumentRow]:
    """The documents that serve and fit `where`, which is of this package, never of a user."""
    found = connection.execute(ENTRIES + where, tuple(values))
    return [
        DocumentRow(name, collection, title, loads(metadata), *others)
        for name, collection, title, metadata, *others in found
    ]


def fact(connection: CatalogConnection, name: str) -> int:
    """A number that the catalog keeps of itself."""
    found = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    if not found:
        raise CatalogError(f"the catalog does not know its own {name!r}: {REMEDY}")
    return found[0]


def digest_of(document: Document, collection: str) -> bytes:
    """A digest of all that a version is made of."""
    parts = [(part.id, part.name, part.start, part.page, dumps(part.metadata)) for part in document.parts]
    return digest_told(collection, document.title, dumps(document.metadata), parts=parts)


def digest_told(*told: object, parts: Sequence[Sequence[object]]) -> bytes:
    """The digest of a version's collection, title, metadata and parts."""
    return blake3(json.dumps([*told, parts]).encode()).digest(16)


def uploads(
    connection: CatalogConnection, where: str, *, values: Sequence[object], index: str | None = None
) -> list[QueuedUpload]:
    """The uploads that fit `where`, a text of this package. They are found by the index that is named, so that a
    queue is quick however long its history, or else by rows."""
    how = f"INDEXED BY {index}" if index else "NOT INDEXED"
    joined = f"FROM uploads u {how} CROSS JOIN jobs j ON j.row = u.job"
    found = connection.execute(f"{_UPLOADS} {joined} WHERE {where}", tuple(values))
    return [
        QueuedUpload(number, job, document, collection, name, UploadState(state), *others)
        for number, job, document, collection, name, state, *others in found
    ]


def jobs(connection: CatalogConnection, where: str, *, values: Sequence[object]) -> list[Job]:
    """The jobs that fit `where`, the newest first; it is of this package and names columns of `jobs`."""
    some = f"(SELECT row, id, created FROM jobs WHERE {where})"
    joined = f"FROM {some} j LEFT JOIN uploads u ON u.job = j.row GROUP BY j.row, j.id, j.created ORDER BY j.row DESC"
    columns = f"j.id, j.created, coalesce(max(u.updated), j.created), {_SUMS}"
    return [
        Job(
            *(name, created, updated),
            {state: count for state, count in zip(UploadState, sums[:-4], strict=True) if count},
            *sums[-4:],
        )
        for name, created, updated, *sums in connection.execute(f"SELECT {columns} {joined}", tuple(values))
    ]
