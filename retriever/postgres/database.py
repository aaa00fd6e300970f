"""Connections to one PostgreSQL database: pool, timeouts, transactions, fences, oldest version. Errors name no server.

Nothing waits for ever: a connection that does not come, and a statement that is not answered, end as a CatalogError. It
names neither the server nor the user, as whoever asked may be told of it.
"""

import logging
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, LiteralString, TypeAlias, cast
from weakref import WeakSet

import psycopg
from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format, TransactionStatus
from psycopg.sql import SQL, Composed, Identifier
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper, StrDumper
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from retriever.errors import CatalogError, DocumentError
from retriever.postgres.connection import PostgresConnection, Session, Watch

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

log = logging.getLogger(__name__)

OLDEST: Final = 150000  # as the server says it: 15
CONNECTIONS: Final = 16
CONNECT_S: Final = 5

_DEFAULTS: Final = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
# A server that is cut off, or stands still in a change, lets go by itself.
_SESSION: Final[LiteralString] = (
    "SET lock_timeout = '60s'; SET idle_in_transaction_session_timeout = '300s'; SET search_path TO kvweave; "
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; "
    "SET tcp_user_timeout = 20000; SET default_transaction_isolation = 'read committed'"
)
_OF_THE_SERVER: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.InsufficientPrivilege,
    PoolTimeout,
)
_NO_ANSWER: Final = "the database does not answer: look after PostgreSQL, and ask again"

Pool: TypeAlias = "ConnectionPool[Connection[TupleRow]]"

NoTables = psycopg.errors.UndefinedTable  # raised where a database is empty, or just being restored

_TEXTS = ("text", "varchar", "name")  # they cannot hold NUL, ours may: it is written as two characters, as \x01 is


class AnotherDatabase(CatalogError):
    """Raised where a new connection leads to another database than those before it, or to an older state of it."""


class PostgresDatabase:
    """A pool of connections to one database. Safe for threads."""

    def __init__(self, url: str, *, connections: int = CONNECTIONS) -> None:
        """Opens it. Raises CatalogError where it cannot be used."""
        self.name = f"kvweave-{secrets.token_hex(8)}"  # of all its connections
        self._conninfo = _completed(url, application_name=self.name)
        self._watch = Watch()
        self._fence: LiteralString = ""
        self._proof: Callable[[], str] | None = None
        self._proven: WeakSet[Connection[TupleRow]] = WeakSet()
        with explained(first=True):
            with psycopg.connect(self._conninfo, autocommit=True) as probe:
                _check(probe)
            self._pool: Pool = ConnectionPool(
                self._conninfo,
                kwargs={"autocommit": True},
                min_size=1,
                max_size=connections,
                timeout=CONNECT_S,
                configure=_configure,
                reconnect_timeout=60,
                open=True,
                name="kvweave-postgres",
            )

    @contextmanager
    def connection(self) -> Generator[PostgresConnection]:
        """A connection on which each statement is its own transaction, in the schema `kvweave`."""
        with explained():
            raw = self._take()
            try:
                yield PostgresConnection(raw, watch=self._watch)
            finally:
                self._give(raw)

    @contextmanager
    def transaction(self, begin: str, *, schema: str) -> Generator[PostgresConnection]:
        """All that is done in the block happens, or nothing. `begin` stands behind BEGIN, with what is run first.

        Only the tables of the schema have names within the block.
        """
        kind, _, first = begin.partition(";")
        fence = "" if "READ ONLY" in kind else self._fence
        opening = SQL("BEGIN {kind}; SET LOCAL search_path TO {schema};{fence}{first}").format(
            kind=SQL(cast(LiteralString, kind)),
            schema=Identifier(schema),
            fence=SQL(fence),
            first=SQL(cast(LiteralString, first)),
        )
        with explained():
            raw = self._begun(opening)
            try:
                connection = PostgresConnection(raw, watch=self._watch)
                yield connection
                connection.script("COMMIT")
            finally:
                self._give(raw)

    def fence(self, key: int, session: "Connection[TupleRow]") -> None:
        """Let changes happen only while this session holds the advisory lock `key`, 1; a later call takes its place.

        Waits for what a process that had it before is still changing.
        """
        with explained():
            self.watched(session).execute(f"SELECT pg_advisory_lock({key}, 2), pg_advisory_unlock({key}, 2)")
        held = f"locktype = 'advisory' AND classid = {key} AND objid = 1 AND pid = {session.info.backend_pid}"
        fence = f"SELECT pg_advisory_xact_lock_shared({key}, 2); SELECT 1 / count(*) FROM pg_locks WHERE {held};"
        self._fence = cast(LiteralString, fence)

    def fence_by_row(self, key: int, row: int) -> None:
        """Let changes happen only while this row stands among the replicas, and nobody has the lock `key`, 2 alone."""
        held = f"SELECT 1 / count(*) FROM kvweave.replicas WHERE row = {row} AND name = '{self.name}'"
        self._fence = cast(LiteralString, f"SELECT pg_advisory_xact_lock_shared({key}, 2); {held};")

    def prove_by(self, proof: Callable[[], str] | None) -> None:
        """Use only connections on which this statement finds something: others lead to another database."""
        self._proof, self._proven = proof, WeakSet()

    @contextmanager
    def session(self) -> Generator["Connection[TupleRow]"]:
        """A connection of its own beside the pool, for what a session holds."""
        with explained(), psycopg.connect(self._conninfo, autocommit=True) as raw:
            _configure(raw)
            yield raw

    def notices(self, session: Session, wait_s: float) -> Iterator[str]:
        """Yields what is told on the channels that a session listens to, as it comes, for so long."""
        with explained():
            for notice in session.notifies(timeout=wait_s):
                yield notice.payload

    def watched(self, raw: "Connection[TupleRow]") -> PostgresConnection:
        """The statements of a session, none of which waits for ever."""
        return PostgresConnection(raw, watch=self._watch)

    def close(self) -> None:
        self._watch.close()
        self._pool.close()

    def _begun(self, opening: Composed) -> "Connection[TupleRow]":
        """A connection in a new transaction. Those that broke while nobody used them are let go first."""
        for _ in range(CONNECTIONS):
            raw = self._take()
            try:
                PostgresConnection(raw, watch=self._watch).script(opening)
                return raw
            except psycopg.OperationalError:
                broken = raw.closed or raw.broken
                self._give(raw)
                if not broken:
                    raise
        raise CatalogError(_NO_ANSWER)

    def _take(self) -> "Connection[TupleRow]":
        raw = self._pool.getconn()
        proof, proven = self._proof, self._proven
        if proof and raw not in proven:
            if not self._is_proven(raw, cast(LiteralString, proof())):
                raw.close()
                self._pool.putconn(raw)
                raise AnotherDatabase("the database is another one than before: ask again when its indexes are made")
            proven.add(raw)
        return raw

    def _is_proven(self, raw: "Connection[TupleRow]", proof: LiteralString) -> bool:
        try:
            with self._watch.answering(raw):
                return raw.execute(proof).fetchone() is not None
        except NoTables:
            return False
        except psycopg.Error:
            self._give(raw)
            raise

    def _give(self, raw: "Connection[TupleRow]") -> None:
        """Takes a connection back; what was not committed is undone."""
        if not raw.closed and raw.info.transaction_status != TransactionStatus.IDLE:
            try:
                with self._watch.answering(raw):
                    raw.execute("ROLLBACK")
            except psycopg.Error:  # the server undoes it when it notices
                raw.close()
        self._pool.putconn(raw)


def _completed(url: str, **ours: str) -> str:
    """The address with what it leaves to us."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise CatalogError("the address of the database is none: write postgresql://user@host/database") from None
    named = {name: str(value) for name, value in given.items() if value is not None}
    return make_conninfo("", **{**_DEFAULTS, **named, **ours})


def _configure(raw: "Connection[TupleRow]") -> None:
    _adapt(raw)
    raw.execute(_SESSION)


def _check(raw: "Connection[TupleRow]") -> None:
    """Raises CatalogError for a server that cannot keep a catalog."""
    if raw.info.server_version < OLDEST:
        raise CatalogError(f"PostgreSQL 15 is the oldest that kvweave uses, this one is {raw.info.server_version}")
    if raw.info.parameter_status("server_encoding") != "UTF8":
        raise CatalogError("the database is not encoded as UTF8: create it with ENCODING 'UTF8'")


@contextmanager
def explained(*, first: bool = False) -> Generator[None]:
    """Raises what the server or the way to it is to blame for as a CatalogError; the log alone knows more."""
    try:
        yield
    except psycopg.errors.ProgramLimitExceeded as error:
        raise DocumentError(
            "an id or a name is longer than PostgreSQL can index: shorten it to 800 characters"
        ) from error
    except psycopg.errors.DivisionByZero:  # of the fence
        raise CatalogError("this process does not serve the database just now: ask again") from None
    except PoolClosed:
        raise CatalogError("the catalog is closed") from None
    except _OF_THE_SERVER as error:
        reason = str(error).partition("\n")[0]
        log.warning("PostgreSQL does not answer: %s", reason)
        raise CatalogError(f"PostgreSQL cannot be used: {reason}" if first else _NO_ANSWER) from None


def _adapt(connection: "Connection[TupleRow]") -> None:
    """Has Python's values go to PostgreSQL and come back as they go to SQLite and come back."""
    adapters = connection.adapters
    adapters.register_dumper(str, _NulText)
    adapters.register_dumper(str, _NulBinaryText)
    adapters.register_dumper(int, Int8BinaryDumper)
    for name in _TEXTS:
        adapters.register_loader(name, _TextLoader)
        adapters.register_loader(name, _BinaryTextLoader)


class _NulText(StrDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_written(obj))


class _NulBinaryText(StrBinaryDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_written(obj))


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        return text.replace("\x01\x30", "\0").replace("\x01\x31", "\x01") if "\x01" in text else text


class _BinaryTextLoader(_TextLoader):
    format = Format.BINARY


def _written(text: str) -> str:
    if "\0" not in text and "\x01" not in text:
        return text
    return text.replace("\x01", "\x01\x31").replace("\0", "\x01\x30")
