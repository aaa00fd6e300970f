"""Checks a catalog row by row, an older one brought up to date: which documents to put in again, what else is wrong."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from retriever.catalog.connection import CatalogConnection
from retriever.catalog.renew import is_index_sound
from retriever.catalog.soundness import VERSIONS, is_sound
from retriever.catalog.sqlite import SqliteCatalog
from retriever.catalog.sqlite_connection import beside
from retriever.errors import CatalogError

_BATCH: Final = 1000
_LOST: Final = """
SELECT DISTINCT p.document, (SELECT max(document) FROM uploads u WHERE u.version = p.document)
FROM passages p WHERE p.document NOT IN (SELECT row FROM documents)
"""
_HELD: Final = "SELECT label FROM documents UNION ALL SELECT label FROM passages WHERE own IS NOT NULL"
_VECTOR: Final = "coalesce((SELECT 2 * dim FROM embedders e WHERE e.row = v.embedder), -1)"

# What is told of rows where a statement finds one.
_WRONG: Final = (
    ("passages of no document", "SELECT 1 FROM passages WHERE document NOT IN (SELECT row FROM documents)"),
    (
        "uses of chunks",
        "SELECT 1 FROM chunks c WHERE uses = 0 OR uses <> (SELECT count(*) FROM passages WHERE chunk = c.row)",
    ),
    (
        "counts of passages",
        "SELECT 1 FROM facts WHERE name = 'passages' AND value <> (SELECT count(*) FROM passages p "
        "JOIN documents d ON d.row = p.document WHERE d.serving = 1)",
    ),
    (
        "labels",
        f"SELECT 1 FROM labels WHERE row NOT IN ({_HELD}) UNION ALL "
        f"SELECT 1 FROM ({_HELD}) AS held GROUP BY label HAVING count(*) > 1",
    ),
    ("filters", "SELECT 1 FROM facets WHERE label NOT IN (SELECT row FROM labels)"),
    (
        "vectors",
        f"SELECT 1 FROM vectors v WHERE length(vector) <> {_VECTOR} OR chunk NOT IN (SELECT row FROM chunks)",
    ),
)


@dataclass(frozen=True, slots=True)
class CatalogReport:
    """What a check found. `damaged`: ids of documents that must be put in again. `wrong`: which rows besides."""

    documents: int
    damaged: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


def check_catalog(path: Path) -> CatalogReport:
    """Check a catalog, which others may use meanwhile. Raises CatalogError where its pages are damaged."""
    SqliteCatalog(path).close()  # an older one becomes one of today
    with beside(path) as connection:
        [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise CatalogError(f"{path} is damaged ({found.splitlines()[-1]}): restore it from a backup")
        is_whole = _is_index_whole(connection)
        connection.execute("BEGIN")
        return check(connection, is_index_whole=is_whole)


def check(connection: CatalogConnection, *, is_index_whole: bool = True) -> CatalogReport:
    """Check the tables of one state."""
    count, damaged = 0, dict[str, None]()
    last = 0
    some = f"{VERSIONS} d.row > ? ORDER BY d.row LIMIT ?"
    while versions := connection.execute(some, (last, _BATCH)).fetchall():
        for version in versions:
            last, name, serving, *_ = version
            count += serving
            if not is_sound(connection, version):
                damaged[name] = None
    lost = connection.execute(_LOST).fetchall()
    damaged.update({name or f"number {row}": None for row, name in lost})  # nobody may know the id any more
    wrong = [name for name, finds in _WRONG if connection.execute(f"{finds} LIMIT 1").fetchone()]
    if not (is_index_whole and is_index_sound(connection)):
        wrong.append("words of the index")
    return CatalogReport(count + len(lost), tuple(damaged), tuple(wrong))


def _is_index_whole(connection: sqlite3.Connection) -> bool:
    """Whether FTS5 can read all of its index."""
    try:
        connection.execute("INSERT INTO terms (terms) VALUES ('integrity-check')")
    except sqlite3.DatabaseError:
        return False
    return True
