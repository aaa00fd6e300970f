"""A tenant's catalog as one schema of a PostgreSQL database. What is read and changed in it is `retriever.catalog`'s.

A schema for each tenant: within a transaction its tables alone have names, so no statement needs a condition that could
be forgotten, and what SQLite runs, PostgreSQL runs too.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from psycopg.sql import SQL, Identifier, Literal

from retriever.catalog.change import CatalogChange
from retriever.catalog.postings import Postings
from retriever.catalog.view import CatalogView
from retriever.errors import CatalogError
from retriever.postgres.connection import SLOW_S
from retriever.postgres.database import PostgresDatabase

VIEW: Final = "ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1 FROM facts"  # which fixes the state
CHANGE: Final = "; SELECT 1 FROM facts WHERE name = 'changes' FOR UPDATE"  # one change at a time
RESTING: Final = "; SET LOCAL idle_in_transaction_session_timeout = 0"  # behind either: much is computed within
_CHANGED: Final = """
UPDATE facts SET value = value + 1 WHERE name = 'changes';
UPDATE numbered SET seq = found.last FROM (
    SELECT 'chunks' AS name, max(row) AS last FROM chunks UNION ALL SELECT 'removed', max(row) FROM removed
    UNION ALL SELECT 'vectors', max(row) FROM vectors
) AS found WHERE numbered.name = found.name AND numbered.seq < found.last
"""
_TEXTS: Final = ("chunks", "contents", "documents", "facets", "fillers", "labels", "passages", "terms", "uploads")


class PostgresCatalog:
    """See `Catalog`. The database is its maker's to close."""

    def __init__(self, database: PostgresDatabase, schema: str, *, tenant: str) -> None:
        self._database = database
        self._told = SQL("; SELECT pg_notify('kvweave', {tenant})").format(tenant=Literal(tenant))
        self._schema = schema
        self._postings = Postings()
        self._writing = threading.Lock()
        self._emptied = -1
        self._closed = False

    @contextmanager
    def view(self) -> Generator[CatalogView]:
        """A view of the state as it is now."""
        self._check_open()
        with self._database.transaction(VIEW, schema=self._schema) as connection:
            yield CatalogView(connection, self._postings)

    @contextmanager
    def change(self) -> Generator[CatalogChange]:
        """Begins a change when other changes have ended."""
        self._check_open()
        with self._writing, self._database.transaction(CHANGE, schema=self._schema) as connection:
            yield CatalogChange(connection)
            if connection.changed:
                connection.script(SQL(_CHANGED) + self._told)

    def empty_log(self) -> bool:
        """Vacuums what was deleted. Copies in the server's own log go as its settings say."""
        with self.view() as view:
            changes = view.state().changes
        if changes != self._emptied:
            names = SQL(", ").join(Identifier(self._schema, table) for table in _TEXTS)
            with self._database.connection() as connection:
                connection.script(SQL("VACUUM {names}").format(names=names), wait_s=SLOW_S)
            self._emptied = changes
        return True

    def close(self) -> None:
        """Closes the catalog; the connections are the database's."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise CatalogError("the catalog is closed")
