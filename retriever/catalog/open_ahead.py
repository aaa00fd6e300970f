"""Opens SQLite with a write-ahead log (WAL) that is synced; refuses where the disk lacks room for the log's index.

SQLite maps the index of a log into memory, and takes room for it page by page, by a byte each. Where the blocks of a
file system are smaller than a page that leaves holes, and whoever writes into one through memory is killed where the
disk is full. So the room is taken whole, by another process: to close that file gives up all locks of who closes it.
"""

import mmap
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from retriever.catalog.sqlite_connection import SqliteConnection

_INDEX_BYTES: Final = 4 << 15  # of a log of 64 MiB
_SECTOR_BYTES: Final = 512
_TAKE: Final = "import os, sys; os.posix_fallocate(os.open(sys.argv[1], os.O_RDWR), 0, int(sys.argv[2]))"


def open_ahead(path: Path, *, wait_s: int) -> SqliteConnection:
    """Opens it for any thread; a change waits so long for others. Raises sqlite3.DatabaseError."""
    index = path.with_name(f"{path.name}-shm")
    if _has_holes(index):
        disk = os.statvfs(path.parent)
        if disk.f_frsize * disk.f_bavail < _INDEX_BYTES:
            raise _full()
    connection = sqlite3.connect(
        path, timeout=wait_s, isolation_level=None, check_same_thread=False, factory=SqliteConnection
    )
    try:
        _log_ahead(connection, wait_s)
        for pragma in ("synchronous = FULL", "secure_delete = ON"):
            connection.execute(f"PRAGMA {pragma}")
        if _has_holes(index):
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # what is not read has no index yet
            command = [sys.executable, "-IS", "-c", _TAKE, index, str(_INDEX_BYTES)]
            if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
                raise _full()
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def _has_holes(index: Path) -> bool:
    """Whether a file that SQLite maps lacks blocks, or will: looked at without opening it. macOS fills none."""
    if os.statvfs(index.parent).f_frsize >= mmap.PAGESIZE or not hasattr(os, "posix_fallocate"):
        return False
    try:
        return index.stat().st_blocks * _SECTOR_BYTES < _INDEX_BYTES
    except FileNotFoundError:
        return True


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def _log_ahead(connection: sqlite3.Connection, wait_s: int) -> None:
    """SQLite does not wait here for a process that opens the same new file, as it does for every other lock."""
    until = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
