"""A connection to a catalog in SQLite: the table of words (FTS5), waits for writers, errors with the remedy.

The table of words is FTS5 without content, told at a delete what it held.
"""

import sqlite3
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from retriever.catalog.connection import Bodies, Fetched
from retriever.catalog.schema import analysis
from retriever.errors import CatalogError

WAIT_S = 60  # for another process's change

_REMEDIES = {
    sqlite3.SQLITE_BUSY: "another process is changing it, try again",
    sqlite3.SQLITE_CANTOPEN: "name a place that can be written",
    sqlite3.SQLITE_CORRUPT: "it is damaged, restore it from a backup",
    sqlite3.SQLITE_FULL: "free some space",
    sqlite3.SQLITE_IOERR: "look after the disk",
    sqlite3.SQLITE_NOTADB: "it is no database or a damaged one, restore it from a backup",
    sqlite3.SQLITE_READONLY: "let this process write it",
}
_OF_THE_DISK = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}


@contextmanager
def sqlite_errors_explained(what: str, error_type: type[Exception] = CatalogError) -> Generator[None]:
    """Raises what the file or the disk is to blame for with the remedy; other errors are ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if str(error).startswith("Could not decode to UTF-8"):  # and goes on with the text, which is not for a log
            raise error_type(f"{what} holds a text that is damaged: restore it from a backup") from None
        remedy = _REMEDIES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if not remedy:
            raise
        raise error_type(f"{what}: {error}: {remedy}") from error


@contextmanager
def foreign_sqlite_errors_explained(path: Path) -> Generator[None]:
    """Raises what may be the file's fault as an error that says that it may be no catalog, while nobody knows yet."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_DISK:
            with sqlite_errors_explained(f"the catalog {path}"):
                raise
        raise CatalogError(f"{path} is no catalog, or a damaged one ({error}): restore it from a backup") from error


class SqliteConnection(sqlite3.Connection):
    """A `CatalogConnection` to a file of SQLite."""

    @property
    def analysis(self) -> int | str:
        return analysis()

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
