"""What SQLite says is wrong with a file, as our errors with the remedy. Knows no tables."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from retriever.errors import CatalogError

_REMEDIES = {
    sqlite3.SQLITE_BUSY: "another process is changing it, try again",
    sqlite3.SQLITE_CANTOPEN: "name a place that can be written",
    sqlite3.SQLITE_CORRUPT: "it is damaged, restore it from a backup",
    sqlite3.SQLITE_FULL: "free some space",
    sqlite3.SQLITE_IOERR: "look after the disk",
    sqlite3.SQLITE_NOTADB: "it is no database or a damaged one, restore it from a backup",
    sqlite3.SQLITE_READONLY: "let this process write it",
}
_OF_THE_DISK = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}


@contextmanager
def sqlite_errors_explained(what: str, error_type: type[Exception] = CatalogError) -> Generator[None]:
    """Raises what the file or the disk is to blame for with the remedy; other errors are ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if str(error).startswith("Could not decode to UTF-8"):  # and goes on with the text, which is not for a log
            raise error_type(f"{what} holds a text that is damaged: restore it from a backup") from None
        remedy = _REMEDIES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if not remedy:
            raise
        raise error_type(f"{what}: {error}: {remedy}") from error


@contextmanager
def foreign_sqlite_errors_explained(path: Path) -> Generator[None]:
    """Raises what may be the file's fault as an error that says that it may be no catalog, while nobody knows yet."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_DISK:
            with sqlite_errors_explained(f"the catalog {path}"):
                raise
        raise CatalogError(f"{path} is no catalog, or a damaged one ({error}): restore it from a backup") from error
