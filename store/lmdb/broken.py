"""How the last user left an LMDB folder, by a mark; whether it is damaged, tried in a child process, then moved aside.

The lock file holds a mark. It is empty in a folder of an older release, which wrote out what its memory held.
"""

import os
import signal
import subprocess
import sys
from enum import Enum
from pathlib import Path

from store.disk import sync_to_disk

DATA = "data.mdb"
BAD = 3  # the exit status of an inspection that found damage

_BROKEN = "data.mdb.broken"
_ROOT = Path(__file__).resolve().parent.parent.parent  # the folder to import this package from, installed or not
_FAULTS = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class LeftAs(Enum):
    """How a folder was left: in order, or in use, by a process that was killed or still has it."""

    UNKNOWN = b""
    CLEAN = b"clean "
    IN_USE = b"in use"


def left_as(lock_file: int) -> LeftAs:
    """The mark in a lock file."""
    found = os.pread(lock_file, len(LeftAs.IN_USE.value), 0)
    return LeftAs(found) if found in {each.value for each in LeftAs} else LeftAs.IN_USE


def mark(lock_file: int, left: LeftAs) -> None:
    """Put the mark into a lock file, and onto the disk."""
    os.pwrite(lock_file, left.value, 0)
    os.fsync(lock_file)


def is_broken(folder: Path) -> bool:
    """Whether the folder must not be used. A child process tries it, as following a wild page kills the process."""
    command = [sys.executable, "-m", "store.lmdb.inspection", str(folder)]
    quiet = subprocess.DEVNULL
    ended = subprocess.run(command, cwd=_ROOT, stdin=quiet, stdout=quiet, stderr=quiet, check=False).returncode
    return ended == BAD or -ended in _FAULTS


def move_aside(folder: Path) -> None:
    """Make way for a new file. The broken one is kept for inspection, in place of an older one."""
    (folder / DATA).replace(folder / _BROKEN)
    (folder / "lock.mdb").unlink(missing_ok=True)
    sync_to_disk(folder)


def forget_broken(folder: Path, *, before: float) -> bool:
    """Remove what was moved aside, if it was last written before that time; returns whether it was removed."""
    broken = folder / _BROKEN
    if not broken.exists() or broken.stat().st_mtime >= before:
        return False
    broken.unlink()
    return True
