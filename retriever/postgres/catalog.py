"""A tenant's catalog as one PostgreSQL schema: isolation of views and changes, notices of changes, when rewritten.

A schema for each tenant: within a transaction its tables alone have names, so no statement needs a condition that could
be forgotten, and what SQLite runs, PostgreSQL runs too.
"""

import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from psycopg.sql import SQL, Literal

from retriever.catalog.change import CatalogChange
from retriever.catalog.postings import Postings
from retriever.catalog.renew import index_anew, is_current
from retriever.catalog.schema import STEPS
from retriever.catalog.view import CatalogView
from retriever.errors import CatalogError
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.rewriting import CHANGE, UNSAMPLED, rewrite
from retriever.postgres.schemas import prepare, schema_of

log = logging.getLogger(__name__)

# The lock comes before the state is fixed, so that no tables take the place of these in between.
VIEW: Final = "ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE facts IN ACCESS SHARE MODE; SELECT 1 FROM facts"
RESTING: Final = "; SET LOCAL idle_in_transaction_session_timeout = 0"  # behind either: much is computed within
_CHANGED: Final = """
UPDATE facts SET value = value + 1 WHERE name = 'changes';
UPDATE numbered SET seq = found.last FROM (
    SELECT 'chunks' AS name, max(row) AS last FROM chunks UNION ALL SELECT 'removed', max(row) FROM removed
    UNION ALL SELECT 'vectors', max(row) FROM vectors
) AS found WHERE numbered.name = found.name AND numbered.seq < found.last
"""


def open_catalog(database: PostgresDatabase, tenant: str) -> "PostgresCatalog":
    """The catalog of a tenant, made where there is none."""
    schema = schema_of(tenant)
    prepare(database, schema, steps=STEPS, tenant=tenant)
    with database.transaction(CHANGE, schema=schema) as connection:
        connection.script(UNSAMPLED)
        if not is_current(connection):
            index_anew(connection)
    return PostgresCatalog(database, schema, tenant=tenant)


class PostgresCatalog:
    """See `Catalog`. The database is its maker's to close."""

    def __init__(self, database: PostgresDatabase, schema: str, *, tenant: str) -> None:
        self._database = database
        self._told = SQL("; SELECT pg_notify('kvweave', {tenant})").format(tenant=Literal(tenant))
        self._schema = schema
        self._postings = Postings()
        self._writing = threading.Lock()
        self._anew_from = 0.0  # when it may be written anew, by the monotonic clock
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
        """Writes the tables anew where something was deleted, but for a twentieth of the time at most."""
        self._check_open()
        began = time.monotonic()
        if began < self._anew_from:
            return False
        is_clean = rewrite(self._database, self._schema)
        if not is_clean:
            log.info("what was deleted stays in the files of a catalog's tables for a while")
        now = time.monotonic()
        self._anew_from = now + 20 * (now - began)
        return is_clean

    def rest(self) -> bool:
        """Lets go of nothing: the connections are the database's."""
        return False

    def close(self) -> None:
        """Closes the catalog; the connections are the database's."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise CatalogError("the catalog is closed")
