"""Catalogs that are filled under other names, and become their tenants' all at once. Knows not what is put in."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from psycopg.sql import SQL, Identifier

from retriever.catalog.schema import STEPS
from retriever.postgres.catalog import CHANGE, RESTING
from retriever.postgres.connection import PostgresConnection
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import prepare, schema_of

_NAMED: Final = "staged_"  # as no tenant's is


class StagedSchemas:
    """Schemas of tenants that are not there yet. One process at a time has them."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._schemas: dict[str, str] = {}

    @contextmanager
    def change(self, tenant: str) -> Generator[PostgresConnection]:
        """The tables of a tenant's catalog, made where there are none."""
        schema = self._schemas.setdefault(tenant, f"{_NAMED}{len(self._schemas)}")
        prepare(self._database, schema, steps=STEPS)
        with self._database.transaction(CHANGE + RESTING, schema=schema) as connection:
            fact = "INSERT INTO facts VALUES ('analysis', ?) ON CONFLICT DO NOTHING"
            connection.execute(fact, (connection.analysis,))
            yield connection

    def serve(self, connection: PostgresConnection) -> None:
        """Makes each its tenant's, in a transaction on the schema of the service."""
        for tenant, staged in self._schemas.items():
            schema = schema_of(tenant)
            names = (Identifier(staged), Identifier(schema))
            connection.script(SQL("ALTER SCHEMA {} RENAME TO {}").format(*names))
            connection.execute("UPDATE schemas SET name = ?, tenant = ? WHERE name = ?", (schema, tenant, staged))
        self._schemas.clear()

    def clear(self) -> None:
        """Drops what was never made a tenant's, also by a process that was killed."""
        with self._database.connection() as connection:
            staged = connection.execute(
                "SELECT name FROM schemas WHERE tenant IS NULL AND name LIKE ?", (f"{_NAMED}%",)
            )
            for (name,) in staged.fetchall():
                connection.script(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(name)))
                connection.execute("DELETE FROM schemas WHERE name = ?", (name,))
