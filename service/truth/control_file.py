"""The control database as one SQLite file. Knows no key and no tenant."""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from retriever.catalog.connection import CatalogConnection
from retriever.catalog.open_ahead import open_ahead
from retriever.catalog.schema import transaction
from retriever.catalog.sqlite_errors import sqlite_errors_explained
from service.access.private import private_file, private_folder
from service.errors import AccessError, Unavailable
from service.truth.schema import prepare

WAIT_S = 30  # for another process's change


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
