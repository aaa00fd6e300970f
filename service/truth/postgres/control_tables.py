"""The control database as tables of PostgreSQL. Knows no key and no tenant."""

from collections.abc import Generator
from contextlib import contextmanager

from retriever.catalog.connection import CatalogConnection
from retriever.errors import CatalogError
from retriever.postgres.connection import PostgresConnection
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import SERVICE, prepare
from service.errors import Unavailable
from service.truth.control_file import STEPS
from service.truth.postgres.postgres_peers import TABLES

_MORE = """
CREATE TABLE version (value INTEGER NOT NULL);
INSERT INTO version VALUES (1);
CREATE TABLE points (weights TEXT PRIMARY KEY, point TEXT NOT NULL);
"""


class ControlTables:
    """See `ControlStore`. The database is its maker's to close."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._closed = False
        with self._explained():
            prepare(database, SERVICE, steps=(STEPS[0] + _MORE, TABLES, *STEPS[1:]))

    @contextmanager
    def read(self) -> Generator[CatalogConnection]:
        with self._explained(), self._database.connection() as connection:
            yield connection

    @contextmanager
    def change(self) -> Generator[PostgresConnection]:
        begin = "; UPDATE version SET value = value + 1"  # of two changes the second waits here
        with self._explained(), self._database.transaction(begin, schema=SERVICE) as connection:
            yield connection

    def version(self, connection: CatalogConnection) -> int:
        [version] = connection.execute("SELECT value FROM version").fetchone()
        return version

    def close(self) -> None:
        self._closed = True

    @contextmanager
    def _explained(self) -> Generator[None]:
        if self._closed:
            raise Unavailable("the control database is closed: the service is stopping")
        try:
            yield
        except CatalogError as error:
            raise Unavailable(str(error)) from None
