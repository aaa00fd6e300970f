"""The replicas of one database in its tables: heartbeats, leases, claims, deletions, rates. Knows no threads."""

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from retriever.errors import CatalogError
from retriever.filter_condition import LISTED, listed
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import SERVICE
from service.access.principal import Principal
from service.access.rates import WINDOW_S
from service.truth.peers import Passed, Peers

TABLES: Final = """
CREATE TABLE replicas (
    row INTEGER PRIMARY KEY, name TEXT NOT NULL, store TEXT NOT NULL, beat INTEGER NOT NULL, passed INTEGER NOT NULL
);
CREATE TABLE sweeps (tenant TEXT PRIMARY KEY, number INTEGER NOT NULL);
CREATE TABLE claims (tenant TEXT NOT NULL, upload INTEGER NOT NULL, replica INTEGER NOT NULL,
    PRIMARY KEY (tenant, upload)
);
CREATE TABLE asked (key TEXT NOT NULL, at REAL NOT NULL);
CREATE INDEX asked_of_key ON asked (key, at);
"""
LEASE_S: Final = 5.0  # how long a service may answer after it has told that it lives
GIVEN_UP_S: Final = 6.0  # how long one is looked at that tells nothing: clocks need not run alike
PASSING_S: Final = 10.0  # how long a delete waits for the others
_LOOK_S: Final = 0.02
_SWEPT: Final = "; UPDATE version SET value = value + 1; SELECT pg_notify('kvweave', '')"
_LEARNED: Final = (  # ended sessions that all services know of
    "DELETE FROM sweeps WHERE tenant LIKE E'%\n%' AND number <= (SELECT min(passed) FROM replicas)"
)
_LOCKS: Final = 1802925925  # precompute's have the number before
_TIMELINE: Final = "left(pg_walfile_name(pg_current_wal_lsn()), 8)"  # another one where a standby took over
_COUNT: Final = f"""
WITH clock AS (SELECT CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION) AS now),
gone AS (DELETE FROM asked USING clock WHERE key = ?1 AND (at <= now - {WINDOW_S} OR at > now + 1)),
had AS (
    SELECT count(at) AS count, coalesce(min(at), max(now)) + {WINDOW_S} - max(now) AS wait_s
    FROM clock LEFT JOIN asked ON key = ?1 AND at > now - {WINDOW_S} AND at <= now + 1
),
added AS (INSERT INTO asked SELECT ?1, now FROM clock, had WHERE count < ?2)
SELECT count, wait_s FROM had
"""


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """Another service. `beat` rises while it lives; `name` is that of its connections."""

    row: int
    name: str
    store: str
    beat: int


class PostgresPeers(Peers):
    """Those of one database. `row` is this process's own among the services, 0 where it is none."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self.row = 0
        self._beats = 0  # that the database has acknowledged
        self._timeline = ""

    def passed(self, what: Passed) -> bool:
        try:
            return self._wait_for_all("\n".join(what) if what.session else what.tenant)
        except CatalogError:  # what was deleted stays so
            return False

    def _wait_for_all(self, what: str) -> bool:
        with self._database.transaction(_SWEPT, schema=SERVICE) as connection:
            [number] = connection.execute(
                "INSERT INTO sweeps VALUES (?, (SELECT value FROM version)) "
                "ON CONFLICT (tenant) DO UPDATE SET number = excluded.number RETURNING number",
                (what,),
            ).fetchone()
            connection.execute(_LEARNED)
        until = time.monotonic() + PASSING_S
        while True:
            with self._database.connection() as connection:
                left = connection.execute(
                    "SELECT 1 FROM replicas WHERE passed < ? AND row <> ? LIMIT 1", (number, self.row)
                ).fetchone()
            if left is None or time.monotonic() > until:
                return left is None
            time.sleep(_LOOK_S)

    def taken(self, tenant: str) -> Sequence[int]:
        with self._database.connection() as connection:
            found = connection.execute(
                "SELECT upload FROM claims WHERE tenant = ? AND replica <> ? AND replica IN (SELECT row FROM replicas)",
                (tenant, self.row),
            ).fetchall()
        return [upload for (upload,) in found]

    def claim(self, tenant: str, uploads: Sequence[int]) -> Collection[int]:
        with self._database.connection() as connection:
            found = connection.execute(
                "INSERT INTO claims AS c SELECT ?, given, ? FROM unnest(CAST(? AS BIGINT[])) AS given "
                "ON CONFLICT (tenant, upload) DO UPDATE SET replica = excluded.replica "
                "WHERE c.replica = excluded.replica OR c.replica NOT IN (SELECT row FROM replicas) RETURNING upload",
                (tenant, self.row, listed(sorted(uploads))),
            ).fetchall()
        return [upload for (upload,) in found]

    def let_go(self, tenant: str, uploads: Sequence[int]) -> None:
        with suppress(CatalogError), self._database.connection() as connection:
            connection.execute(
                f"DELETE FROM claims WHERE tenant = ? AND replica = ? AND upload IN {LISTED}",
                (tenant, self.row, listed(uploads)),
            )

    def count(self, principal: Principal, most: int) -> float | None:
        """Counts a key's request of all the services together, by the server's clock. See `Rates`."""
        key = f"{principal.tenant} {principal.key_id}"
        number = crc32(key.encode()) - (1 << 31)
        begin = f"; SELECT pg_advisory_xact_lock({_LOCKS}, {number}); SET LOCAL synchronous_commit = off"
        with self._database.transaction(begin, schema=SERVICE) as connection:
            count, wait_s = connection.execute(_COUNT, (key, most)).fetchone()
        return wait_s if count >= most else None

    def others(self) -> list[ReplicaRow]:
        with self._database.connection() as connection:
            found = connection.execute("SELECT row, name, store, beat FROM replicas WHERE row <> ?", (self.row,))
            return [ReplicaRow(*each) for each in found.fetchall()]

    def register(self, store: str) -> int:
        """Makes this process one of the services. Returns the number up to which it has to learn all itself."""
        with self._database.connection() as connection:
            connection.execute("DELETE FROM replicas WHERE name = ?", (self._database.name,))  # in a copy
            row, number, timeline = connection.execute(
                "INSERT INTO replicas (name, store, beat, passed) "
                f"VALUES (?, ?, 0, coalesce((SELECT max(number) FROM sweeps), 0)) RETURNING row, passed, {_TIMELINE}",
                (self._database.name, store),
            ).fetchone()
        self.row, self._beats, self._timeline = row, 0, timeline
        return number

    def _proof(self) -> str:
        """What finds this service where the database is what it was: in a copy it has told fewer signs of life."""
        return f"SELECT 1 FROM kvweave.replicas WHERE {self._same()}"

    def _same(self) -> str:
        told = f"row = {self.row} AND name = '{self._database.name}' AND beat >= {self._beats}"
        return f"{told} AND {_TIMELINE} = '{self._timeline}'"

    def beat(self, passed: int) -> bool:
        """Tells that this service lives, and what it has learned. False where it was given up, or the database is
        another one.
        """
        with self._database.connection() as connection:
            beat = f"UPDATE replicas SET beat = beat + 1, passed = ? WHERE {self._same()} RETURNING beat"
            found = connection.execute(beat, (passed,)).fetchone()
        self._beats = max(self._beats, found[0] if found else 0)
        return found is not None

    def swept_after(self, number: int) -> dict[Passed, int]:
        """The tenants of which something was deleted since, and the sessions that ended, with the number of the last
        time of each.
        """
        with self._database.connection() as connection:
            found = connection.execute("SELECT tenant, number FROM sweeps WHERE number > ?", (number,)).fetchall()
        return {Passed(*what.split("\n")): number for what, number in found}

    def give_up(self, other: ReplicaRow) -> bool:
        """Takes a service out that has told nothing for too long, and ends what it has begun. False where it has."""
        with self._database.connection() as connection:
            gone = connection.execute(
                "DELETE FROM replicas WHERE row = ? AND beat = ? RETURNING row", (other.row, other.beat)
            ).fetchone()
            if gone is None:
                return False
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = ? AND usename = current_user",
                (other.name,),
            )
            connection.execute("DELETE FROM claims WHERE replica = ?", (other.row,))
        return True

    def leave(self) -> None:
        with suppress(CatalogError), self._database.connection() as connection:
            connection.execute("DELETE FROM replicas WHERE row = ?", (self.row,))
            connection.execute("DELETE FROM claims WHERE replica = ?", (self.row,))
