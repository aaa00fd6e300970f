"""Whether a document's version is sound: its digest, labels, filter values, texts and marks. Changes nothing."""

from collections.abc import Sequence
from typing import Final

from retriever.catalog.connection import CatalogConnection, Fetched
from retriever.catalog.rows import digest_told, dumps, loads, sound_text
from retriever.documents import Json
from retriever.errors import CatalogError
from retriever.filter_condition import LISTED, facets, listed
from retriever.marks import marks

VERSIONS: Final = """
SELECT d.row, d.id, d.serving, d.digest, d.parts, d.label, l.collection, d.title, l.metadata
FROM documents d LEFT JOIN labels l ON l.row = d.label WHERE
"""
_PARTS: Final = """
SELECT c.id, p.name, p.start, p.page, coalesce(p.own, '{}'), p.own, p.label, l.collection, l.metadata,
    CAST(c.text AS BLOB), c.head, c.tail, c.nbytes
FROM passages p LEFT JOIN chunks c ON c.row = p.chunk LEFT JOIN labels l ON l.row = p.label
WHERE p.document = ? ORDER BY p.place
"""


def is_same(connection: CatalogConnection, document: str, *, digest: bytes) -> bool:
    """Whether a document with this digest serves, and is sound: else it is to be put in again."""
    found = connection.execute(f"{VERSIONS} d.id = ? AND d.serving = 1 AND d.digest = ?", (document, digest)).fetchone()
    return found is not None and is_sound(connection, found)


def is_sound(connection: CatalogConnection, version: Sequence[Fetched]) -> bool:
    """Whether a row of `VERSIONS` is sound; of those patched since they were put in only texts and labels can tell."""
    row, _, _, digest, count, _, collection, title, metadata = version
    parts = connection.execute(_PARTS, (row,)).fetchall()
    if len(parts) != count or any(part[0] is None for part in parts):
        return False
    if digest and digest != digest_told(collection, title, metadata, parts=[part[:5] for part in parts]):
        return False
    labels = _labels(version, parts)
    return labels is not None and _are_faceted(connection, labels) and _are_marked(parts)


def _labels(version: Sequence[Fetched], parts: list[Fetched]) -> dict[int, Json] | None:
    """The labels of a version with their metadata: those of passages with some of their own; None if wrong."""
    *_, label, collection, _, metadata = version
    try:
        told = {label: loads(metadata or "")}
        for *_, own, has, its_collection, its_metadata, _, _, _, _ in parts:
            if own is None:
                if has != label:
                    return None
                continue
            merged = {**told[label], **loads(own)}
            if has in told or (its_collection, its_metadata) != (collection, dumps(merged)):
                return None
            told[has] = merged
    except CatalogError:
        return None
    return told


def _are_faceted(connection: CatalogConnection, labels: dict[int, Json]) -> bool:
    """Whether filters look at what the metadata say, and at nothing else."""
    rows = f"SELECT label, field, value FROM facets WHERE label IN {LISTED}"
    held = {(label, field, value) for label, field, value in connection.execute(rows, (listed([*labels]),))}
    wanted = {(label, *connection.facet(*facet)) for label, told in labels.items() for facet in facets(told)}
    return held == wanted


def _are_marked(parts: list[Fetched]) -> bool:
    """Whether the texts are what was put in, and are recognised."""
    texts = [sound_text(part[0], part[9]) for part in parts]
    if None in texts:
        return False
    found = marks([text or "" for text in texts])
    return all(
        (mark.head, mark.tail, mark.nbytes) == tuple(part[10:]) if mark else (*part[10:],) == (None, None, None)
        for mark, part in zip(found, parts, strict=True)
    )
