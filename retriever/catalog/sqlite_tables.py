"""The tables of a catalog in one SQLite file, opened beside those who use it."""

import sqlite3
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from retriever.catalog.connection import CatalogConnection
from retriever.catalog.fts5_words import Fts5Words
from retriever.catalog.sqlite import WAIT_S
from retriever.catalog.sqlite_errors import foreign_sqlite_errors_explained

LOOK, CHANGE = "BEGIN", "BEGIN IMMEDIATE"


class SqliteTables:
    """See `CatalogTables`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection: CatalogConnection = connection
        self.words = Fts5Words()

    def facet(self, field: str, value: object) -> tuple[object, object]:
        return field, value

    def numbers(self) -> dict[str, int]:
        return dict(self.connection.execute("SELECT name, seq FROM sqlite_sequence WHERE seq > 0").fetchall())

    def number_on(self, numbers: Mapping[str, int]) -> None:
        self.connection.execute("DELETE FROM sqlite_sequence")
        self.connection.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", numbers.items())


@contextmanager
def open_tables(path: Path, *, begin: str) -> Generator[SqliteTables]:
    """The tables of a catalog that is there, in one transaction: to `LOOK` at them, or to `CHANGE` them."""
    with foreign_sqlite_errors_explained(path), closing(connect(path)) as connection:
        connection.execute(begin)
        yield SqliteTables(connection)
        connection.execute("COMMIT")


def connect(path: Path) -> sqlite3.Connection:
    """A connection beside those of who uses the catalog."""
    connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
    connection.execute("PRAGMA secure_delete = ON")
    return connection
