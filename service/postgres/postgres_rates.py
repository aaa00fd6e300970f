"""How often a key may ask of all the services of a database together. Knows no HTTP."""

import math
from typing import Final
from zlib import crc32

from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import SERVICE
from service.access.principal import Principal
from service.access.rates import WINDOW_S, too_often

_LOCKS: Final = 1802925925  # precompute's have the number before
_TAKE: Final = f"""
WITH clock AS (SELECT CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION) AS now),
gone AS (DELETE FROM asked USING clock WHERE key = ?1 AND (at <= now - {WINDOW_S} OR at > now + 1)),
had AS (
    SELECT count(at) AS count, coalesce(min(at), max(now)) + {WINDOW_S} - max(now) AS wait_s
    FROM clock LEFT JOIN asked ON key = ?1 AND at > now - {WINDOW_S} AND at <= now + 1
),
added AS (INSERT INTO asked SELECT ?1, now FROM clock, had WHERE count < ?2)
SELECT count, wait_s FROM had
"""


class PostgresRates:
    """See `Rates`. The clock is the server's."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def take(self, principal: Principal) -> None:
        """Count a request, or raise Exhausted, which says when the next one will pass."""
        most = principal.per_minute
        if most is None:
            return
        key = f"{principal.tenant} {principal.key_id}"
        number = crc32(key.encode()) - (1 << 31)
        begin = f"; SELECT pg_advisory_xact_lock({_LOCKS}, {number}); SET LOCAL synchronous_commit = off"
        with self._database.transaction(begin, schema=SERVICE) as connection:
            count, wait_s = connection.execute(_TAKE, (key, most)).fetchone()
        if count >= most:
            raise too_often(most, max(1, math.floor(wait_s) + 1))
