"""A connection to PostgreSQL, with the catalog's statements translated; it is cut where no answer comes in time. Words
are lexemes behind a GIN index, without positions.
"""

import logging
import socket
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import dup
from typing import TYPE_CHECKING, Final, LiteralString, TypeAlias, cast

import psycopg
from blake3 import blake3
from psycopg import Connection, RawCursor
from psycopg.sql import Composed

from retriever.catalog.connection import Bodies, Fetched, FetchedRows
from retriever.catalog.schema import analysis
from retriever.filter_condition import LISTED, listed
from retriever.postgres.statements import facet_key, field_key, statement

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

log = logging.getLogger(__name__)

ANSWER_S = 30.0  # for one statement
SLOW_S: Final = 1800.0  # for one that looks at everything

_MOST = 500_000  # bytes of a row's words; PostgreSQL takes a million
_GIVEN = """
SELECT replace(sequencename, '_row_seq', ''), last_value FROM pg_sequences
WHERE schemaname = current_schema() AND last_value IS NOT NULL AND sequencename <> 'labels_row_seq'
"""

Session: TypeAlias = "Connection[TupleRow]"


class PostgresConnection:
    """See `CatalogConnection`. `changed`: how many rows its statements changed.

    A passage of very many words has several rows of words, none of which shares a word with another.
    """

    def __init__(self, raw: "Connection[TupleRow]", *, watch: "Watch") -> None:
        self._raw = raw
        self._watch = watch
        self.changed = 0

    def execute(self, sql: str, values: Sequence[object] = (), /) -> FetchedRows:
        told = statement(sql)
        cursor = RawCursor(self._raw)
        with self._watch.answering(self._raw):
            cursor.execute(cast(LiteralString, told.sql), told.values(values), binary=True)
        if told.is_change:
            self.changed += max(0, cursor.rowcount)
        return _Found(cursor)

    def executemany(self, sql: str, rows: Iterable[Sequence[object]], /) -> FetchedRows:
        told = statement(sql)
        cursor = RawCursor(self._raw)
        with self._watch.answering(self._raw, SLOW_S):
            cursor.executemany(cast(LiteralString, told.sql), told.rows(rows))
        self.changed += max(0, cursor.rowcount)
        return _Found(cursor)

    def script(self, sql: str | Composed, *, wait_s: float | None = None) -> None:
        """Runs statements without parameters, in one trip."""
        with self._watch.answering(self._raw, wait_s):
            self._raw.execute(cast(LiteralString, sql))

    @property
    def analysis(self) -> int | str:
        return int.from_bytes(blake3(analysis().encode()).digest(7))

    def put_words(self, bodies: Bodies) -> None:
        told = [(row, part) for row, found in bodies for part in _parts(sorted(set(found)))]
        self.executemany("INSERT INTO terms VALUES (?, array_to_tsvector(?))", told)

    def remove_words(self, bodies: Bodies) -> None:
        self.execute(f"DELETE FROM terms WHERE passage IN {LISTED}", (listed([row for row, _ in bodies]),))

    def clear_words(self) -> None:
        self.execute("DELETE FROM terms")

    def purge_words(self) -> None:
        """The words went with their rows; what is left of these the next vacuum takes."""

    def holds_words(self, bodies: Iterable[Bodies]) -> bool:
        last = 0
        some = "SELECT passage, tsvector_to_array(words) FROM terms WHERE passage > ? AND passage <= ?"
        for batch in bodies:
            held: dict[int, set[str]] = {}
            for passage, words in self.execute(some, (last, batch[-1][0])):
                held.setdefault(passage, set()).update(words)
            if held != {row: set(found) for row, found in batch}:
                return False
            last = batch[-1][0]
        others = "SELECT 1 FROM terms WHERE passage <= 0 OR passage > ? LIMIT 1"
        return self.execute(others, (last,)).fetchone() is None

    def rows_of_word(self, term: str, *, after: int, limit: int) -> list[Fetched]:
        quoted = f"'{term[:-1]}':*" if term.endswith("*") else f"'{term}'"
        return self.execute(
            "SELECT DISTINCT passage FROM terms WHERE words @@ CAST(? AS tsquery) AND passage > ? "
            "ORDER BY passage LIMIT CAST(? AS BIGINT)",
            (quoted, after, None if limit < 0 else limit),
        ).fetchall()

    def facet(self, field: str, value: object) -> tuple[object, object]:
        return field_key(field), facet_key(value)

    def numbers(self) -> dict[str, int]:
        return dict(self.execute(_GIVEN).fetchall())

    def number_on(self, numbers: Mapping[str, int]) -> None:
        [last] = self.execute("SELECT coalesce(max(row), 0) FROM labels").fetchone()
        for name, number in {**numbers, **({"labels": last} if last else {})}.items():
            self.execute("SELECT setval(pg_get_serial_sequence(?, 'row'), ?)", (name, number))
            self.execute("UPDATE numbered SET seq = ? WHERE name = ?", (number, name))


class _Found:
    """What a statement found, also where it finds nothing by its nature."""

    def __init__(self, cursor: "RawCursor[TupleRow]") -> None:
        self._cursor = cursor
        self.rowcount = cursor.rowcount

    def fetchone(self) -> "TupleRow | None":
        return self._cursor.fetchone() if self._cursor.description else None

    def fetchall(self) -> "list[TupleRow]":
        return self._cursor.fetchall() if self._cursor.description else []

    def __iter__(self) -> "Iterator[TupleRow]":
        return iter(self.fetchall())


class Watch:
    """Cuts connections whose answer does not come: a thread that waits for one cannot look after itself."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Connection[TupleRow], float]] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="kvweave-postgres-watch", daemon=True).start()

    @contextmanager
    def answering(self, raw: "Connection[TupleRow]", wait_s: float | None = None) -> Generator[None]:
        self._waiting[id(raw)] = raw, time.monotonic() + (wait_s or ANSWER_S)
        try:
            yield
        finally:
            self._waiting.pop(id(raw), None)

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(1.0):
            now = time.monotonic()
            for raw, until in list(self._waiting.values()):
                if now > until and not raw.closed:
                    log.warning("PostgreSQL did not answer: its connection is cut")
                    with suppress(OSError, psycopg.Error), socket.socket(fileno=dup(raw.fileno())) as peer:
                        peer.shutdown(socket.SHUT_RDWR)


def _parts(words: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    nbytes = 0
    for word in words:
        if nbytes + len(word) > _MOST:
            yield part
            part, nbytes = [], 0
        part.append(word)
        nbytes += len(word)
    yield part
