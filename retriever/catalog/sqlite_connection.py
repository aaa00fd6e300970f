"""A connection to a catalog in SQLite. The table of words is FTS5 without content, told at a delete what it held."""

import sqlite3
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from retriever.catalog import query_terms
from retriever.catalog.connection import Bodies, Fetched
from retriever.catalog.sqlite_errors import foreign_sqlite_errors_explained

WAIT_S = 60  # for another process's change


class SqliteConnection(sqlite3.Connection):
    """A `CatalogConnection` to a file of SQLite."""

    @property
    def analysis(self) -> int | str:
        return query_terms.VERSION

    def put_words(self, bodies: Bodies) -> None:
        told = [(row, " ".join(found)) for row, found in bodies]
        self.executemany("INSERT INTO terms (rowid, body) VALUES (?, ?)", told)

    def remove_words(self, bodies: Bodies) -> None:
        told = [(row, " ".join(found)) for row, found in bodies]
        self.executemany("INSERT INTO terms (terms, rowid, body) VALUES ('delete', ?, ?)", told)

    def clear_words(self) -> None:
        self.execute("INSERT INTO terms (terms) VALUES ('delete-all')")

    def purge_words(self) -> None:
        self.execute("INSERT INTO terms (terms) VALUES ('optimize')")

    def holds_words(self, bodies: Iterable[Bodies]) -> bool:
        wanted = sum(
            hash((row,)) + sum(hash((word, row, at)) for at, word in enumerate(found))
            for batch in bodies
            for row, found in batch
        )
        self.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.held USING fts5vocab('main', 'terms', 'instance')")
        try:
            held = sum(map(hash, self.execute("SELECT id FROM terms_docsize")))
            held += sum(map(hash, self.execute("SELECT term, doc, offset FROM temp.held")))
        except sqlite3.DatabaseError:
            return False
        return wanted == held

    def rows_of_word(self, term: str, *, after: int, limit: int) -> list[Fetched]:
        # As FTS5 reads it: a text, never an operator.
        quoted = f'"{term[:-1]}"*' if term.endswith("*") else f'"{term}"'
        return self.execute(
            "SELECT rowid FROM terms WHERE terms MATCH ? AND rowid > ? LIMIT ?", (quoted, after, limit)
        ).fetchall()

    def facet(self, field: str, value: object) -> tuple[object, object]:
        return field, value

    def numbers(self) -> dict[str, int]:
        return dict(self.execute("SELECT name, seq FROM sqlite_sequence WHERE seq > 0").fetchall())

    def number_on(self, numbers: Mapping[str, int]) -> None:
        self.execute("DELETE FROM sqlite_sequence")
        self.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", numbers.items())


@contextmanager
def beside(path: Path) -> Generator[SqliteConnection]:
    """A connection to a catalog that is there, beside those of who uses it."""
    with (
        foreign_sqlite_errors_explained(path),
        closing(sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, factory=SqliteConnection)) as connection,
    ):
        connection.execute("PRAGMA secure_delete = ON")
        yield connection
