"""A catalog in one SQLite file: its connections, transactions, unused ones closed, VACUUM where something was deleted.

WAL: readers see one committed state and never wait for the writer. A change is on the disk when it returns.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from retriever.catalog import schema
from retriever.catalog.change import CatalogChange
from retriever.catalog.open_ahead import open_ahead
from retriever.catalog.postings import Postings
from retriever.catalog.renew import renew
from retriever.catalog.sqlite_connection import (
    WAIT_S,
    SqliteConnection,
    foreign_sqlite_errors_explained,
    sqlite_errors_explained,
)
from retriever.catalog.view import CatalogView
from retriever.errors import CatalogError

log = logging.getLogger(__name__)

_IS_PURGED = "SELECT 1 FROM facts WHERE name = 'dropped' AND value < 0"
CACHE_KIB = 65_536  # of pages, for each connection


class SqliteCatalog:
    """See `Catalog`. A connection serves one transaction at a time and is kept for the next one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._free: list[SqliteConnection] = []  # the one used last is the last
        self._unused = 0  # of the first ones, since the last rest
        self._is_resting = False
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        self._postings = Postings()
        self._closed = False
        self._file: tuple[int, int] | None = None
        self._anew_from = 0.0  # when it may be written anew, by the monotonic clock
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = self._open()
        try:
            with foreign_sqlite_errors_explained(path):
                schema.prepare(connection)
                renew(connection)
        except CatalogError:
            connection.close()
            raise
        self._free.append(connection)
        self._file = _file(path)

    @contextmanager
    def view(self) -> Generator[CatalogView]:
        """A view of the state as it is now."""
        connection = self._take()
        try:
            with sqlite_errors_explained(f"the catalog {self._path}"):
                connection.execute("BEGIN")
                connection.execute("SELECT 1 FROM facts").fetchone()  # BEGIN alone leaves the state to the first read
                yield CatalogView(connection, self._postings)
        finally:
            self._give(connection)

    @contextmanager
    def change(self) -> Generator[CatalogChange]:
        """Begins a change when other changes have ended."""
        with self._writing:
            connection = self._take()
            try:
                with sqlite_errors_explained(f"the catalog {self._path}"):
                    connection.execute("BEGIN IMMEDIATE")
                    before = connection.total_changes
                    yield CatalogChange(connection)
                    if connection.total_changes != before:
                        connection.execute("UPDATE facts SET value = value + 1 WHERE name = 'changes'")
                    connection.execute("COMMIT")
            finally:
                self._give(connection)

    def empty_log(self) -> bool:
        """Empties the log, which keeps what was deleted until then. False, at once, where somebody still reads it."""
        with self._writing:
            connection = self._take()
            try:
                with sqlite_errors_explained(f"the catalog {self._path}"):
                    connection.execute("PRAGMA busy_timeout = 0")
                    self._write_anew(connection)
                    [busy, _, _] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                    return not busy
            finally:
                connection.execute(f"PRAGMA busy_timeout = {1000 * WAIT_S}")
                self._give(connection)

    def _write_anew(self, connection: SqliteConnection) -> None:
        """Writes the file anew where something was deleted, but for a twentieth of the time at most.

        SQLite overwrites what it deletes; where it moved a row before, a copy is left between the rows of a page.
        """
        began = time.monotonic()
        if began < self._anew_from or not connection.execute(_IS_PURGED).fetchone():
            return
        try:
            connection.execute("VACUUM")
            connection.execute("UPDATE facts SET value = 0 WHERE name = 'dropped' AND value < 0")
        except sqlite3.OperationalError as error:  # another process changes it, or the disk is too full for a copy
            log.info("what was deleted stays in a catalog's file for a while", extra={"reason": str(error)})
        now = time.monotonic()
        self._anew_from = now + 20 * (now - began)

    def rest(self) -> bool:
        """Closes the connections that nobody used since the last call, which keep pages. One stays, without any: a full
        disk may let no other be opened.
        """
        with self._guard:
            if self._is_resting:
                return False
            unused, self._free = self._free[: self._unused], self._free[self._unused :]
            if unused and not self._free:
                self._free, self._is_resting = [unused.pop()], True
                self._free[0].execute("PRAGMA shrink_memory")
            self._unused = len(self._free)
        for connection in unused:
            connection.close()
        return self._is_resting or bool(unused)

    def close(self) -> None:
        """Closes the catalog and waits for nobody: what is open ends by itself."""
        with self._guard:
            self._closed = True
            free, self._free = self._free, []
        for connection in free:
            connection.close()

    def _take(self) -> SqliteConnection:
        if self._file and _file(self._path) != self._file:  # its connections go on with the one that was there
            raise CatalogError(f"the catalog {self._path} is another file than before: start the service again")
        with self._guard:
            if self._closed:
                raise CatalogError(f"the catalog {self._path} is closed")
            self._is_resting = False
            if self._free:
                found = self._free.pop()
                self._unused = min(self._unused, len(self._free))
                return found
        return self._open()

    def _give(self, connection: SqliteConnection) -> None:
        """Takes a connection back; what was not committed is undone."""
        if connection.in_transaction:
            with suppress(sqlite3.OperationalError):  # a full disk has undone it already
                connection.execute("ROLLBACK")
        with self._guard:
            if not self._closed:
                self._free.append(connection)
                return
        connection.close()

    def _open(self) -> SqliteConnection:
        with sqlite_errors_explained(f"the catalog {self._path}"):
            connection = open_ahead(self._path, wait_s=WAIT_S)
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            return connection


def _file(path: Path) -> tuple[int, int] | None:
    """Which file bears the name; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
