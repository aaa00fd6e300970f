"""Checks a catalog row by row, and mends what follows from rows that are right. Texts follow from nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from retriever.catalog.renew import index_anew
from retriever.catalog.rows import digest_told, loads, sound_text
from retriever.catalog.schema import transaction
from retriever.catalog.sqlite import WAIT_S, SqliteCatalog
from retriever.catalog.sqlite_errors import foreign_sqlite_errors_explained
from retriever.errors import CatalogError
from retriever.filter_condition import facets

_DOCUMENTS = """
SELECT d.row, d.id, d.digest, l.collection, d.title, l.metadata
FROM documents d LEFT JOIN labels l ON l.row = d.label WHERE d.serving = 1
"""
_PARTS = """
SELECT CAST(c.text AS BLOB), c.id, p.name, p.start, p.page, coalesce(p.own, '{}')
FROM passages p LEFT JOIN chunks c ON c.row = p.chunk WHERE p.document = ? ORDER BY p.place
"""


@dataclass(frozen=True, slots=True)
class CatalogReport:
    """What a check found. `damaged`: ids of documents that must be put in again. `mended`: labels, and the index."""

    documents: int
    damaged: tuple[str, ...]
    mended: int


def check_catalog(path: Path) -> CatalogReport:
    """Check a catalog, which others may use meanwhile. Raises CatalogError where its pages are damaged."""
    SqliteCatalog(path).close()  # an older one becomes one of today
    with foreign_sqlite_errors_explained(path), closing(_connected(path)) as connection:
        [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise CatalogError(f"{path} is damaged ({found.splitlines()[-1]}): restore it from a backup")
        judged = list(_judged(connection))
        damaged = tuple(name for name, is_sound in judged if not is_sound)
        with transaction(connection):
            mended = _mend_facets(connection) + _mend_index(connection)
    return CatalogReport(len(judged), damaged, mended)


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)


def _judged(connection: sqlite3.Connection) -> Iterator[tuple[str, bool]]:
    """Yields ids of documents, and whether they are what was put in; of those patched since only texts can be told."""
    for row, name, digest, *told in connection.execute(_DOCUMENTS):
        parts = connection.execute(_PARTS, (row,)).fetchall()
        is_sound = all(chunk is not None and sound_text(chunk, data) is not None for data, chunk, *_ in parts)
        yield name, is_sound and (not digest or digest == digest_told(*told, parts=[part for _, *part in parts]))


def _mend_facets(connection: sqlite3.Connection) -> int:
    """Makes anew what filters look at, where it is not what the metadata say; returns for how many labels."""
    wrong = 0
    for label, metadata in connection.execute("SELECT row, metadata FROM labels").fetchall():
        wanted = {(field, value, label) for field, value in facets(loads(metadata))}
        found = connection.execute("SELECT field, value, label FROM facets WHERE label = ?", (label,)).fetchall()
        if set(found) != wanted:
            connection.execute("DELETE FROM facets WHERE label = ?", (label,))
            connection.executemany("INSERT OR REPLACE INTO facets VALUES (?, ?, ?)", wanted)
            wrong += 1
    return wrong


def _mend_index(connection: sqlite3.Connection) -> int:
    try:
        connection.execute("INSERT INTO terms (terms) VALUES ('integrity-check')")
    except sqlite3.DatabaseError:
        index_anew(connection)
        return 1
    return 0
