"""Checks a catalog row by row, and mends what follows from rows that are right. Texts follow from nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from retriever.catalog.fts5_words import Fts5Words
from retriever.catalog.renew import index_anew, is_index_sound
from retriever.catalog.repairs import Repair, loose_ends, repairs
from retriever.catalog.rows import digest_told, sound_text
from retriever.catalog.schema import transaction
from retriever.catalog.sqlite import WAIT_S, SqliteCatalog
from retriever.catalog.sqlite_errors import foreign_sqlite_errors_explained
from retriever.errors import CatalogError

_DOCUMENTS = """
SELECT d.row, d.id, d.digest, l.collection, d.title, l.metadata
FROM documents d LEFT JOIN labels l ON l.row = d.label WHERE d.serving = 1
"""
_PARTS = """
SELECT CAST(c.text AS BLOB), c.id, p.name, p.start, p.page, coalesce(p.own, '{}')
FROM passages p LEFT JOIN chunks c ON c.row = p.chunk WHERE p.document = ? ORDER BY p.place
"""
_LOST = """
SELECT DISTINCT p.document, (SELECT document FROM uploads u WHERE u.version = p.document)
FROM passages p WHERE p.document NOT IN (SELECT row FROM documents)
"""


@dataclass(frozen=True, slots=True)
class CatalogReport:
    """What a check found. `damaged`: ids of documents that must be put in again. `mended`: changes of rows."""

    documents: int
    damaged: tuple[str, ...]
    mended: int


def check_catalog(path: Path) -> CatalogReport:
    """Check a catalog, which others may use meanwhile; they see all that was mended at their next start.

    Raises CatalogError where its pages are damaged.
    """
    SqliteCatalog(path).close()  # an older one becomes one of today
    with foreign_sqlite_errors_explained(path), closing(_connected(path)) as connection:
        [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise CatalogError(f"{path} is damaged ({found.splitlines()[-1]}): restore it from a backup")
        is_whole = _is_index_whole(connection)
        connection.execute("BEGIN")  # nobody waits while all is looked at
        judged = [*_judged(connection), *_lost(connection)]
        damaged = tuple(name for name, is_sound in judged if not is_sound)
        is_right = is_whole and next(_wrong(connection, damaged), None) is None and is_index_sound(connection)
        connection.execute("COMMIT")
        mended = 0 if is_right else _mend(connection, damaged)
    return CatalogReport(len(judged), damaged, mended)


def mend_rows(path: Path) -> CatalogReport | None:
    """Look in seconds at all that follows from other rows, but for the index's words; check and mend where it does not.

    Returns None where all is right. Raises CatalogError as `check_catalog`.
    """
    SqliteCatalog(path).close()
    with foreign_sqlite_errors_explained(path), closing(_connected(path)) as connection:
        connection.execute("BEGIN")
        is_right = next(repairs(connection), None) is None
        connection.execute("COMMIT")
    return None if is_right else check_catalog(path)


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _judged(connection: sqlite3.Connection) -> Iterator[tuple[str, bool]]:
    """Yields ids of documents, and whether they are what was put in; of those patched since only texts can be told."""
    for row, name, digest, *told in connection.execute(_DOCUMENTS):
        parts = connection.execute(_PARTS, (row,)).fetchall()
        is_sound = all(chunk is not None and sound_text(chunk, data) is not None for data, chunk, *_ in parts)
        yield name, is_sound and (not digest or digest == digest_told(*told, parts=[part for _, *part in parts]))


def _lost(connection: sqlite3.Connection) -> Iterator[tuple[str, bool]]:
    """Yields documents of which only passages are left, by number where nobody knows the id any more."""
    for row, name in connection.execute(_LOST):
        yield name or f"number {row}", False


def _wrong(connection: sqlite3.Connection, damaged: tuple[str, ...]) -> Iterator[Repair]:
    return repairs(connection) if damaged else chain(repairs(connection), loose_ends(connection))


def _mend(connection: sqlite3.Connection, damaged: tuple[str, ...]) -> int:
    """Mends what is wrong; returns how much. Indexes and filters of open catalogs then begin anew."""
    mended = 0
    with transaction(connection):
        for statement, values in _wrong(connection, damaged):
            connection.execute(statement, values)
            mended += 1
        if not (_is_index_whole(connection) and is_index_sound(connection)):
            index_anew(connection, Fts5Words())
            mended += 1
        connection.execute("UPDATE facts SET value = value + 1 WHERE name = 'changes'")
        connection.execute("UPDATE facts SET value = hex(randomblob(8)) WHERE name = 'catalog'")
    return mended


def _is_index_whole(connection: sqlite3.Connection) -> bool:
    """Whether FTS5 can read all of its index."""
    try:
        connection.execute("INSERT INTO terms (terms) VALUES ('integrity-check')")
    except sqlite3.DatabaseError:
        return False
    return True
