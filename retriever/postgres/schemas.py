"""The schemas of a database: one of the service, one of each tenant. Makes them, and brings older ones to this version.

Whoever comes first does so, under a lock; whoever comes second finds it done.
"""

from typing import Final

from blake3 import blake3
from psycopg.sql import SQL, Identifier

from retriever.errors import CatalogError
from retriever.postgres.connection import SLOW_S, PostgresConnection
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.statements import tables

SERVICE: Final = "kvweave"
STAGED: Final = "staged_"  # schemas that are filled, and no tenant's yet
_LONGEST: Final = 63  # bytes of a name in PostgreSQL
LOCK: Final = 0x6B767763  # of whoever makes schemas, or brings them forward
_FIRST: Final = f"""
SELECT pg_advisory_xact_lock({LOCK});
CREATE SCHEMA IF NOT EXISTS kvweave;
CREATE TABLE IF NOT EXISTS kvweave.schemas (
    name TEXT COLLATE "C" PRIMARY KEY, tenant TEXT COLLATE "C" UNIQUE, version BIGINT NOT NULL
)
"""


def schema_of(tenant: str) -> str:
    name = f"{SERVICE}_{tenant}"
    return name if len(name) <= _LONGEST else f"{name[:30]}_{blake3(tenant.encode()).hexdigest(length=16)}"


def tenants_in(database: PostgresDatabase) -> list[str]:
    with database.connection() as connection:
        found = connection.execute("SELECT tenant FROM schemas WHERE tenant IS NOT NULL ORDER BY tenant")
        return [tenant for (tenant,) in found]


def serve_staged(connection: PostgresConnection, staged: str, *, tenant: str) -> None:
    """Makes a staged schema a tenant's, in a transaction on the schema of the service."""
    schema = schema_of(tenant)
    connection.script(SQL("ALTER SCHEMA {} RENAME TO {}").format(Identifier(staged), Identifier(schema)))
    connection.execute("UPDATE schemas SET name = ?, tenant = ? WHERE name = ?", (schema, tenant, staged))


def drop_staged(database: PostgresDatabase, which: str = STAGED) -> None:
    """Drops what is staged under names that begin so, also by a process that was killed."""
    with database.connection() as connection:
        staged = connection.execute("SELECT name FROM schemas WHERE tenant IS NULL AND name LIKE ?", (f"{which}%",))
        for (name,) in staged.fetchall():
            connection.script(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(name)))
            connection.execute("DELETE FROM schemas WHERE name = ?", (name,))


def prepare(database: PostgresDatabase, schema: str, *, steps: tuple[str, ...], tenant: str | None = None) -> None:
    """Bring a schema to this version, or make it, in one transaction."""
    if _version(database, schema) == len(steps):
        return
    with database.transaction(f";{_FIRST}", schema=schema) as connection:
        found = connection.execute("SELECT version FROM kvweave.schemas WHERE name = ?", (schema,)).fetchone()
        version = found[0] if found else 0
        if version > len(steps):
            raise CatalogError(f"the catalog is of version {version}, this kvweave knows {len(steps)}: use the newer")
        if version == 0:
            connection.script(SQL("CREATE SCHEMA IF NOT EXISTS {name}").format(name=Identifier(schema)))
        for number in range(version, len(steps)):
            connection.script(tables(steps[number]), wait_s=SLOW_S)
        if version == 0 and schema != SERVICE:
            connection.execute("INSERT INTO facts VALUES ('analysis', ?)", (connection.analysis,))
        _note(connection, schema, tenant=tenant, version=len(steps))


def _note(connection: PostgresConnection, schema: str, *, tenant: str | None, version: int) -> None:
    connection.execute(
        "INSERT INTO kvweave.schemas VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET version = excluded.version",
        (schema, tenant, version),
    )


def _version(database: PostgresDatabase, schema: str) -> int:
    with database.connection() as connection:
        [known] = connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'kvweave' AND tablename = 'schemas'"
        )
        if known == (0,):
            return 0
        found = connection.execute("SELECT version FROM schemas WHERE name = ?", (schema,)).fetchone()
        return found[0] if found else 0
