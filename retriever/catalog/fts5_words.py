"""The table of words in SQLite: FTS5 without content, which is told at a delete what it held."""

import sqlite3
from collections.abc import Iterable

from retriever.catalog import query_terms
from retriever.catalog.connection import CatalogConnection, Fetched
from retriever.catalog.word_table import Bodies


class Fts5Words:
    """See `WordTable`."""

    @property
    def version(self) -> int | str:
        return query_terms.VERSION

    def put(self, connection: CatalogConnection, bodies: Bodies) -> None:
        told = [(row, " ".join(found)) for row, found in bodies]
        connection.executemany("INSERT INTO terms (rowid, body) VALUES (?, ?)", told)

    def remove(self, connection: CatalogConnection, bodies: Bodies) -> None:
        told = [(row, " ".join(found)) for row, found in bodies]
        connection.executemany("INSERT INTO terms (terms, rowid, body) VALUES ('delete', ?, ?)", told)

    def clear(self, connection: CatalogConnection) -> None:
        connection.execute("INSERT INTO terms (terms) VALUES ('delete-all')")

    def purge(self, connection: CatalogConnection) -> None:
        connection.execute("INSERT INTO terms (terms) VALUES ('optimize')")

    def holds(self, connection: CatalogConnection, bodies: Iterable[Bodies]) -> bool:
        wanted = sum(
            hash((row,)) + sum(hash((word, row, at)) for at, word in enumerate(found))
            for batch in bodies
            for row, found in batch
        )
        connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.held USING fts5vocab('main', 'terms', 'instance')")
        try:
            held = sum(map(hash, connection.execute("SELECT id FROM terms_docsize")))
            held += sum(map(hash, connection.execute("SELECT term, doc, offset FROM temp.held")))
        except sqlite3.DatabaseError:
            return False
        return wanted == held

    def rows(self, connection: CatalogConnection, term: str, *, after: int, limit: int) -> list[Fetched]:
        # As FTS5 reads it: a text, never an operator.
        quoted = f'"{term[:-1]}"*' if term.endswith("*") else f'"{term}"'
        return connection.execute(
            "SELECT rowid FROM terms WHERE terms MATCH ? AND rowid > ? LIMIT ?", (quoted, after, limit)
        ).fetchall()
