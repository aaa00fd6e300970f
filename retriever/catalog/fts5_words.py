"""The table of words in SQLite: FTS5 without content, which is told at a delete what it held."""

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

    def rows(self, connection: CatalogConnection, term: str, *, after: int, limit: int) -> list[Fetched]:
        # As FTS5 reads it: a text, never an operator.
        quoted = f'"{term[:-1]}"*' if term.endswith("*") else f'"{term}"'
        return connection.execute(
            "SELECT rowid FROM terms WHERE terms MATCH ? AND rowid > ? LIMIT ?", (quoted, after, limit)
        ).fetchall()
