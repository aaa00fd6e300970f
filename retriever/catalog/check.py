"""Checks a catalog row by row, and mends what follows from rows that are right. Texts follow from nothing."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from retriever.catalog.catalog_tables import CatalogTables
from retriever.catalog.connection import CatalogConnection
from retriever.catalog.renew import index_anew, is_index_sound
from retriever.catalog.repairs import Repair, loose_ends, repairs
from retriever.catalog.rows import digest_told, sound_text
from retriever.catalog.sqlite import SqliteCatalog
from retriever.catalog.sqlite_errors import foreign_sqlite_errors_explained
from retriever.catalog.sqlite_tables import CHANGE, LOOK, connect, open_tables
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
SELECT DISTINCT p.document, (SELECT max(document) FROM uploads u WHERE u.version = p.document)
FROM passages p WHERE p.document NOT IN (SELECT row FROM documents)
"""


Opened = Callable[[], AbstractContextManager[CatalogTables]]


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
    with foreign_sqlite_errors_explained(path), closing(connect(path)) as connection:
        [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise CatalogError(f"{path} is damaged ({found.splitlines()[-1]}): restore it from a backup")
        is_whole = _is_index_whole(connection)
    return check_tables(
        lambda: open_tables(path, begin=LOOK), lambda: open_tables(path, begin=CHANGE), is_index_whole=is_whole
    )


def check_tables(look: Opened, change: Opened, *, is_index_whole: bool = True) -> CatalogReport:
    """Check the tables that one opens, and mend in what the other opens where something is wrong."""
    with look() as tables:  # nobody waits while all is looked at
        judged = [*_judged(tables.connection), *_lost(tables.connection)]
        damaged = tuple(name for name, is_sound in judged if not is_sound)
        is_right = is_index_whole and next(_wrong(tables, damaged), None) is None and _is_indexed(tables)
    if is_right:
        return CatalogReport(len(judged), damaged, 0)
    with change() as tables:
        return CatalogReport(len(judged), damaged, _mend(tables, damaged, is_index_whole=is_index_whole))


def mend_rows(path: Path) -> CatalogReport | None:
    """Look in seconds at all that follows from other rows, but for the index's words; check and mend where it does not.

    Returns None where all is right. Raises CatalogError as `check_catalog`.
    """
    SqliteCatalog(path).close()
    with open_tables(path, begin=LOOK) as tables:
        is_right = next(repairs(tables), None) is None
    return None if is_right else check_catalog(path)


def _judged(connection: CatalogConnection) -> Iterator[tuple[str, bool]]:
    """Yields ids of documents, and whether they are what was put in; of those patched since only texts can be told."""
    for row, name, digest, *told in connection.execute(_DOCUMENTS):
        parts = connection.execute(_PARTS, (row,)).fetchall()
        is_sound = all(chunk is not None and sound_text(chunk, data) is not None for data, chunk, *_ in parts)
        yield name, is_sound and (not digest or digest == digest_told(*told, parts=[part for _, *part in parts]))


def _lost(connection: CatalogConnection) -> Iterator[tuple[str, bool]]:
    """Yields documents of which only passages are left, by number where nobody knows the id any more."""
    for row, name in connection.execute(_LOST):
        yield name or f"number {row}", False


def _wrong(tables: CatalogTables, damaged: tuple[str, ...]) -> Iterator[Repair]:
    return repairs(tables) if damaged else chain(repairs(tables), loose_ends(tables))


def _is_indexed(tables: CatalogTables) -> bool:
    return is_index_sound(tables.connection, tables.words)


def _mend(tables: CatalogTables, damaged: tuple[str, ...], *, is_index_whole: bool) -> int:
    """Mends what is wrong; returns how much. Indexes and filters of open catalogs then begin anew."""
    mended = 0
    for statement, values in _wrong(tables, damaged):
        tables.connection.execute(statement, values)
        mended += 1
    if not (is_index_whole and _is_indexed(tables)):
        index_anew(tables.connection, tables.words)
        mended += 1
    tables.connection.execute("UPDATE facts SET value = value + 1 WHERE name = 'changes'")
    tables.connection.execute("UPDATE facts SET value = hex(randomblob(8)) WHERE name = 'catalog'")
    tables.number_on(tables.numbers())
    return mended


def _is_index_whole(connection: sqlite3.Connection) -> bool:
    """Whether FTS5 can read all of its index."""
    try:
        connection.execute("INSERT INTO terms (terms) VALUES ('integrity-check')")
    except sqlite3.DatabaseError:
        return False
    return True
