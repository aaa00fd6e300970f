"""The tables of `control.sqlite`, and how an older one becomes a newer one. Knows no queries."""

import sqlite3
from typing import Final

from retriever.catalog.schema import transaction
from service.errors import AccessError

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
