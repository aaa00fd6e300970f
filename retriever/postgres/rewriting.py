"""Writes the tables of a catalog anew, so that their files have nothing more of what was deleted.

PostgreSQL leaves the bytes of deleted rows in its pages, and words of theirs in an index for good. So all rows are
copied into tables of a new schema, which then takes the place of the old one. Who reads and changes the catalog goes
on: what was changed meanwhile follows at the end, while changes wait, and only the change of names keeps readers out.
"""

import secrets
import time
from typing import Final, NamedTuple
from zlib import crc32

from blake3 import blake3
from psycopg.errors import DeadlockDetected, LockNotAvailable
from psycopg.sql import SQL, Identifier, Literal

from retriever.catalog.schema import STEPS
from retriever.postgres.connection import SLOW_S, PostgresConnection
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import LOCK, SERVICE, STAGED, drop_staged, prepare
from retriever.postgres.statements import WORDS_INDEX

CHANGE: Final = "; SELECT 1 FROM facts WHERE name = 'changes' FOR UPDATE"  # one change at a time
TRIES: Final = 10  # at the change of names, where somebody reads for long
_REST_S: Final = 1.0  # between two
# Statistics keep examples of what stands in columns: not of those that hold what users write.
UNSAMPLED: Final = """
DO $$ DECLARE found RECORD; BEGIN
FOR found IN SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = CAST(current_schema() AS regnamespace) AND c.relkind = 'r' AND a.attnum > 0
    AND a.atttypid IN ('text'::regtype, 'bytea'::regtype, 'tsvector'::regtype)
    AND a.attname NOT IN ('collection', 'field', 'state') AND a.attstattarget IS DISTINCT FROM 0
LOOP EXECUTE format('ALTER TABLE %I ALTER COLUMN %I SET STATISTICS 0', found.relname, found.attname); END LOOP; END $$
"""
_ALONE: Final = 1802925926  # the locks of rates have the number before
_BEGUN: Final = "UPDATE facts SET value = -2 WHERE name = 'dropped' AND value < 0 RETURNING 1"  # a delete makes it 1
_COPYING: Final = "ISOLATION LEVEL REPEATABLE READ; SET LOCAL idle_in_transaction_session_timeout = 0"
_TABLES: Final = """
SELECT c.relname, array_agg(CAST(a.attname AS TEXT))
FROM pg_class c LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
JOIN pg_attribute a ON a.attrelid = c.oid AND (a.attnum = ANY(i.indkey) OR i.indkey IS NULL AND a.attnum = 1)
WHERE c.relnamespace = CAST(current_schema() AS regnamespace) AND c.relkind = 'r' GROUP BY c.relname
"""
# Whoever has fixed its state before the copies were there, as pg_dump has, would find the new tables empty.
_OLDER: Final = """
SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND usesysid IS NOT NULL
AND age(backend_xmin) > age(CAST(? AS xid)) LIMIT 1
"""
_WAITING: Final = SQL(
    "SET LOCAL lock_timeout = '2s'; SELECT pg_advisory_xact_lock({}); LOCK TABLE {} IN EXCLUSIVE MODE"
)
_FOLLOW: Final = SQL(
    "DELETE FROM {new} n WHERE NOT EXISTS "
    "(SELECT FROM {old} o WHERE ({same}) = ({key}) AND age(o.xmin) > age(CAST({first} AS xid)));"
    "INSERT INTO {new} SELECT * FROM {old} o WHERE age(o.xmin) <= age(CAST({first} AS xid))"
)
_RENAME: Final = SQL(
    "UPDATE {new}.facts SET value = 0 WHERE name = 'dropped' AND value = -2;"
    "ALTER SCHEMA {old} RENAME TO {gone}; ALTER SCHEMA {new} RENAME TO {old}; DROP SCHEMA {gone} CASCADE"
)
_NUMBERED: Final = """
SELECT setval(CAST(format('%I.%I', CAST(? AS TEXT), sequencename) AS regclass), last_value)
FROM pg_sequences WHERE schemaname = ? AND last_value IS NOT NULL
"""


class _Snapshot(NamedTuple):
    """What the copies are of. `first`: the first transaction that they may lack; `seen`: who began later sees them."""

    tables: list[tuple[str, list[str]]]
    first: str
    seen: str


def rewrite(database: PostgresDatabase, schema: str) -> bool:
    """Writes a catalog's tables anew if something was deleted since the last time. False where that has to wait."""
    with database.session() as raw:
        session = database.watched(raw)
        number = crc32(schema.encode()) - (1 << 31)
        if session.execute(f"SELECT pg_try_advisory_lock({_ALONE}, {number})").fetchone() != (True,):
            return False
        with database.transaction(CHANGE, schema=schema) as connection:
            if connection.execute(_BEGUN).fetchone() is None:
                return True
        ours = f"{STAGED}{blake3(schema.encode()).hexdigest(length=8)}_"
        drop_staged(database, ours)
        staged = f"{ours}{secrets.token_hex(8)}"  # nobody else's, even if this session has lost the lock
        try:
            prepare(database, staged, steps=STEPS)
            copied = _copied(database, schema, staged=staged)
            for _ in range(TRIES):
                if _is_put_in_place(database, schema, staged=staged, copied=copied):
                    return True
                time.sleep(_REST_S)
        finally:
            drop_staged(database, ours)
    return False


def _copied(database: PostgresDatabase, schema: str, *, staged: str) -> _Snapshot:
    with database.transaction(_COPYING, schema=staged) as connection:
        first = _number(connection, "pg_snapshot_xmin(pg_current_snapshot())")
        tables = connection.execute(_TABLES).fetchall()
        connection.script(f"{UNSAMPLED}; TRUNCATE facts, numbered; DROP INDEX terms_of_word")
        for name, _ in tables:
            copy = SQL("INSERT INTO {new} SELECT * FROM {old}; ANALYZE {new}")
            connection.script(copy.format(**_places(name, schema, staged=staged)), wait_s=SLOW_S)
        connection.script(WORDS_INDEX, wait_s=SLOW_S)
    with database.connection() as connection:
        return _Snapshot(tables, first, _number(connection, "pg_snapshot_xmax(pg_current_snapshot())"))


def _is_put_in_place(database: PostgresDatabase, schema: str, *, staged: str, copied: _Snapshot) -> bool:
    """Has the copies follow what was changed, and names them as the catalog. False where somebody reads for long."""
    held = [Identifier(schema, name) for name, _ in sorted(copied.tables, key=lambda told: told[0] != "facts")]
    with database.transaction("", schema=SERVICE) as connection:
        try:
            connection.script(_WAITING.format(Literal(LOCK), Identifier(schema, "facts")))
            version = connection.execute("SELECT version FROM schemas WHERE name = ?", (schema,)).fetchone()
            if version != (len(STEPS),) or connection.execute(_OLDER, (copied.seen,)).fetchone():
                connection.script("ROLLBACK")
                return False
            for name, key in copied.tables:
                follow = _FOLLOW.format(
                    key=SQL(", ").join(Identifier("n", each) for each in key),
                    same=SQL(", ").join(Identifier("o", each) for each in key),
                    first=Literal(copied.first),
                    **_places(name, schema, staged=staged),
                )
                connection.script(follow, wait_s=SLOW_S)
            connection.execute(_NUMBERED, (staged, schema)).fetchall()
            connection.script(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(SQL(", ").join(held)))
            connection.script(
                _RENAME.format(old=Identifier(schema), new=Identifier(staged), gone=Identifier(f"{staged}_old"))
            )
            connection.execute("DELETE FROM schemas WHERE name = ?", (staged,))
        except (LockNotAvailable, DeadlockDetected):
            connection.script("ROLLBACK")
            return False
    return True


def _number(connection: PostgresConnection, told: str) -> str:
    [number] = connection.execute(f"SELECT CAST(CAST({told} AS xid) AS TEXT)").fetchone()
    return number


def _places(table: str, schema: str, *, staged: str) -> dict[str, Identifier]:
    return {"old": Identifier(schema, table), "new": Identifier(staged, table)}
