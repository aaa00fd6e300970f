"""Makes a catalog's lexical index anew where its words were made by other rules than today's. Changes no document."""

import sqlite3

from retriever import analysis
from retriever.catalog.lexical import body

_BATCH = 1000


def renew(connection: sqlite3.Connection) -> None:
    """In one transaction; nothing, where the rules are the same. To delete from the index, its own words are needed."""
    if _is_current(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _is_current(connection):  # another process may have been sooner
            _index(connection)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _is_current(connection: sqlite3.Connection) -> bool:
    [found] = connection.execute("SELECT value FROM facts WHERE name = 'analysis'").fetchone()
    return found == analysis.VERSION


def _index(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO terms (terms) VALUES ('delete-all')")
    words, last = 0, 0
    while found := connection.execute(
        "SELECT p.row, d.title, c.text FROM passages p JOIN documents d ON d.row = p.document "
        "JOIN chunks c ON c.row = p.chunk WHERE d.serving = 1 AND p.row > ? ORDER BY p.row LIMIT ?",
        (last, _BATCH),
    ).fetchall():
        bodies = [(row, body(title, text)) for row, title, text in found]
        connection.executemany(
            "INSERT INTO terms (rowid, body) VALUES (?, ?)", [(row, " ".join(terms)) for row, terms in bodies]
        )
        counts = [(len(terms), row) for row, terms in bodies]
        connection.executemany("UPDATE passages SET words = ? WHERE row = ?", counts)
        words += sum(count for count, _ in counts)
        last = found[-1][0]
    connection.execute("UPDATE facts SET value = ? WHERE name = 'words'", (words,))
    connection.execute("UPDATE facts SET value = ? WHERE name = 'analysis'", (analysis.VERSION,))
