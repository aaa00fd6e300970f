"""The control database as one SQLite file: its tables, and how an older one becomes a newer one. Knows no queries."""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from retriever.catalog.connection import CatalogConnection
from retriever.catalog.open_ahead import open_ahead
from retriever.catalog.schema import transaction
from retriever.catalog.sqlite_connection import sqlite_errors_explained
from service.access.private import private_file, private_folder
from service.errors import AccessError, Unavailable

_OURS: Final = 0x6B767763  # in the file's header; other databases have versions too

_FIRST: Final = f"""
PRAGMA application_id = {_OURS};
CREATE TABLE keys (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL, tenant TEXT NOT NULL, role TEXT NOT NULL, bound TEXT,
    per_minute INTEGER, note TEXT NOT NULL, created REAL NOT NULL, revoked REAL
) STRICT, WITHOUT ROWID;
CREATE TABLE quotas (tenant TEXT PRIMARY KEY, documents INTEGER, chunks INTEGER) STRICT, WITHOUT ROWID;
CREATE TABLE switch (row INTEGER PRIMARY KEY CHECK (row = 0), enabled INTEGER NOT NULL, share REAL) STRICT;
CREATE TABLE fingerprints (digest TEXT PRIMARY KEY, fields TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""

# Each brings the file from its place in this list to the next version. Never changed, only followed by others.
STEPS: Final = (_FIRST,)
VERSION = len(STEPS)
WAIT_S = 30  # for another process's change


def prepare(connection: sqlite3.Connection) -> None:
    """Bring an empty or older file to this version, in one transaction."""
    if _checked(connection) == VERSION:
        return
    with transaction(connection):
        for number in range(_checked(connection), VERSION):  # another process may have been sooner
            for statement in STEPS[number].split(";\n"):  # executescript would commit
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number + 1}")


def _checked(connection: sqlite3.Connection) -> int:
    """The file's version. Raises AccessError for a file that is not ours to change."""
    [version] = connection.execute("PRAGMA user_version").fetchone()
    [owner] = connection.execute("PRAGMA application_id").fetchone()
    [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if owner != _OURS and (owner or version or tables):
        raise AccessError("the control database is another program's: name another folder for the data")
    if version > VERSION:
        raise AccessError(f"the control database is of version {version}, this kvweave knows {VERSION}: use the newer")
    return version


class ControlFile:
    """See `ControlStore`. One connection reads, one writes, so the reader notices every change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._closed = False
        private_folder(path.parent)
        with self._explained(), _alone(path.parent):
            private_file(path)
            self._writer = open_ahead(path, wait_s=WAIT_S)
            try:
                prepare(self._writer)
                self._reader = open_ahead(path, wait_s=WAIT_S)
            except (sqlite3.DatabaseError, AccessError):
                self._writer.close()
                raise

    @contextmanager
    def read(self) -> Generator[CatalogConnection]:
        with self._reading, self._explained():
            self._check_open()
            yield self._reader

    @contextmanager
    def change(self) -> Generator[CatalogConnection]:
        with self._writing, self._explained():
            self._check_open()
            with transaction(self._writer):
                yield self._writer

    def version(self, connection: CatalogConnection) -> int:
        """SQLite's own number for what this connection sees."""
        [version] = connection.execute("PRAGMA data_version").fetchone()
        return version

    def close(self) -> None:
        with self._reading, self._writing:
            self._closed = True
            self._reader.close()
            self._writer.close()

    def _explained(self) -> AbstractContextManager[None]:
        return sqlite_errors_explained(f"the control database {self._path}", Unavailable)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the control database {self._path} is closed: the service is stopping")


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Lets one process at a time make the file: SQLite does not wait for another that turns a new file's log on."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
