"""Memory in /dev/shm that another process of the same user maps by its name; private memory where there is no room."""

import fcntl
import mmap
import os
import secrets
from contextlib import suppress
from pathlib import Path
from threading import Lock

FOLDER = Path("/dev/shm")
PREFIX = "kvweave-"
NAME_BYTES = 24


class SharedMemory:
    """So many bytes, all zero. `name` is empty where no other process can have them: the folder is not there, or full.

    The name goes with `unlink`, the bytes go with the last who maps them. A file whose owner lives is locked.
    """

    def __init__(self, nbytes: int) -> None:
        self.name = ""
        self._lock = Lock()
        self._file = _locked_file(name := PREFIX + secrets.token_urlsafe(NAME_BYTES), nbytes)
        if self._file is None:
            self.bytes = mmap.mmap(-1, max(1, nbytes))
        else:
            self.name, self.bytes = name, mmap.mmap(self._file, nbytes)

    def reserve(self, start: int, stop: int) -> bool:
        """Whether these bytes may be written; not behind `unlink`. Raises OSError where the folder has no room."""
        with self._lock:
            if self._file is not None:
                os.posix_fallocate(self._file, start, stop - start)
            return self._file is not None or not self.name

    def unlink(self) -> None:
        """Takes the name away, whoever has the bytes mapped."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            (FOLDER / self.name).unlink(missing_ok=True)
            os.close(file)


def sweep_shared_memory() -> None:
    """Removes what processes of this user left that were killed."""
    for path in FOLDER.glob(f"{PREFIX}*"):
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


def _locked_file(name: str, nbytes: int) -> int | None:
    """A new file for its owner alone, whose bytes are not reserved yet; None where there is no place for it."""
    try:
        free = os.statvfs(FOLDER)
        if not 0 < nbytes <= free.f_bavail * free.f_frsize:
            return None
        file = os.open(FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, nbytes)
    except OSError:
        (FOLDER / name).unlink(missing_ok=True)
        os.close(file)
        return None
    return file
