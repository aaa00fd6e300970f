"""One LMDB environment per path and process: folder lock, transactions, map growth, compaction, errors with remedies.

The map is reserved sparse: the file is only as large as what was written. A map that another process grew is adopted.
Every process holds a shared lock on the folder while it has the environment open; compaction needs it alone.
"""

import errno
import fcntl
import logging
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import lmdb

from store.disk import sync_to_disk, take_rights_of_others
from store.errors import StoreBusy, StoreClosed, StoreDenied, StoreError, StoreFull, StoreUnavailable
from store.lmdb.broken import DATA, LeftAs, is_broken, left_as, mark, move_aside
from store.lmdb.rewrite import rewrite

log = logging.getLogger(__name__)

T = TypeVar("T")

RESERVED_BYTES = 1 << 40
PAGE_BYTES = 4096
_MAX_READERS = 1024
_READER_BYTES = 64  # of an entry in the table; its head takes two
_LEAST_BYTES = 48 * PAGE_BYTES  # an empty store and one transaction
_LOCK_TIMEOUT_S = 60.0
_NEARLY_FULL_BYTES = 1 << 20

_open: dict[Path, "Environment"] = {}
_open_lock = threading.Lock()


class MapFull(Exception):
    """The map has no room for this transaction; nothing of it was written."""


@contextmanager
def _typed(path: Path) -> Generator[None]:
    """Turns errors of LMDB and of the system into errors of the store, with the remedy."""
    try:
        yield
    except StoreError:
        raise
    except lmdb.MapFullError:
        raise MapFull from None
    except (lmdb.ReadonlyError, PermissionError) as error:
        raise StoreDenied(
            f"{path} cannot be written: {error}; check its owner and mode, or name another folder"
        ) from None
    except (lmdb.DiskError, lmdb.Error, OSError) as error:
        raise _by_errno(path, error) from error


def _by_errno(path: Path, error: Exception) -> StoreError:
    text = str(error)
    number = getattr(error, "errno", None)
    if (
        number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        or os.strerror(errno.ENOSPC) in text
        or os.strerror(errno.EFBIG) in text
        or (os.strerror(errno.EIO) in text and _is_full(path))
    ):
        return StoreFull(f"the disk that holds {path} is full: free some space, or give the store a smaller budget")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS) or os.strerror(errno.EROFS) in text:
        return StoreDenied(f"{path} cannot be written: {text}; check its owner and mode, or name another folder")
    return StoreUnavailable(
        f"LMDB at {path}: {text}; if its file is damaged, remove the folder: all in it can be recomputed"
    )


def _is_full(path: Path) -> bool:
    """Whether the disk is full: LMDB reports a write that was cut short as an I/O error."""
    disk, (limit, _) = os.statvfs(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    is_limited = limit != resource.RLIM_INFINITY and (path / DATA).stat().st_size > limit - PAGE_BYTES
    return is_limited or disk.f_bavail * disk.f_frsize < _NEARLY_FULL_BYTES


class Environment:
    """Transactions on one folder. Made by `open_environment`, shared by all stores on that path."""

    def __init__(self, path: Path, map_bytes: int) -> None:
        self.path = path
        self.users = 0
        self.generation = 0  # of the file; LMDB numbers the transactions of a new one from zero
        self._pid = os.getpid()
        self._map_bytes = max(map_bytes, _LEAST_BYTES)
        self._gate = threading.Condition()
        self._active = 0
        self._alone = False
        self._mine = threading.local()
        self._dbs: dict[bytes, lmdb._Database] = {}
        with _typed(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = os.open(path / "kvweave.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with ExitStack() as undo, _typed(path):
            undo.callback(os.close, self._lock_file)
            for place in (path, *path.glob("*.lock"), *path.glob("*.mdb")):
                take_rights_of_others(place)
            if self._is_locked_alone():
                shutil.rmtree(self._scratch, ignore_errors=True)  # left by a compaction that was killed
                self._mend()
            self._flock(fcntl.LOCK_SH, _LOCK_TIMEOUT_S)
            if self._left_as is not LeftAs.UNKNOWN:
                mark(self._lock_file, LeftAs.IN_USE)
            self._env = self._mapped()
            undo.pop_all()

    @property
    def _scratch(self) -> Path:
        return self.path / "compacting"

    @property
    def _left_as(self) -> LeftAs:
        """How the last user left the folder; a new one is in order."""
        return left_as(self._lock_file) if (self.path / DATA).exists() else LeftAs.CLEAN

    def _mend(self) -> None:
        """Repairs what the last user left, while no other process has the folder open."""
        left = self._left_as
        if left is LeftAs.CLEAN:
            return
        if is_broken(self.path):
            move_aside(self.path)
            log.error("a damaged store was moved aside: all in it is computed again", extra={"folder": str(self.path)})
        elif left is LeftAs.UNKNOWN:
            self._wipe()

    def _wipe(self) -> None:
        """Rewrites the file of an older release, whose pages hold bytes of that process' memory: document texts."""
        self._env = self._mapped()
        try:
            self._rewrite()
            mark(self._lock_file, LeftAs.CLEAN)
        except (lmdb.Error, OSError) as error:
            told = {"folder": str(self.path), "reason": str(error)}
            log.warning("old pages, which may hold texts, are rewritten at the next start", extra=told)
        finally:
            self._env.close()

    def _mapped(self) -> lmdb.Environment:
        """Opens the environment with the largest reservation that the system grants."""
        self._reserve_readers()
        wanted = self._map_bytes
        while True:
            try:
                env = lmdb.open(
                    str(self.path),
                    map_size=wanted,
                    max_dbs=16,
                    max_readers=_MAX_READERS,
                    sync=True,
                    metasync=True,
                    writemap=False,
                    map_async=False,
                    readahead=False,  # blobs are read whole and sequentially by the caller; the cache should not guess
                    meminit=True,  # or pages would be filled up with bytes of the process' memory: document texts
                    mode=0o600,
                )
            except (lmdb.MemoryError, MemoryError):
                if wanted < 1 << 30:
                    raise
                wanted //= 2
                continue
            self._fill_up(env)
            return env

    def _reserve_readers(self) -> None:
        """Allocates LMDB's sparse table of readers: writing into a hole kills the process where the disk is full."""
        table = os.open(self.path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):  # macOS has none
                os.posix_fallocate(table, 0, _READER_BYTES * (_MAX_READERS + 2))
        finally:
            os.close(table)

    def _fill_up(self, env: lmdb.Environment) -> None:
        """Extend a truncated file by zeros, which digests detect: reading past its end kills the process."""
        txn = env.begin(write=True)  # no other process lengthens the file meanwhile
        try:
            wanted = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
            if self.file_bytes() < wanted:
                os.truncate(self.path / DATA, wanted)
        finally:
            txn.abort()

    def _is_locked_alone(self) -> bool:
        try:
            self._flock(fcntl.LOCK_EX, 0.0)
        except StoreBusy:
            return False
        return True

    def _flock(self, mode: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(self._lock_file, mode | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StoreBusy(f"{self.path} is in use by another process: stop it, then try again") from None
                time.sleep(0.02)

    @property
    def stale(self) -> bool:
        """Whether the environment belongs to the parent of a fork."""
        return os.getpid() != self._pid

    def database(self, name: bytes) -> "lmdb._Database":
        """A named database, made when it is not there. Ask for each use: a compaction replaces them."""
        known = self._dbs.get(name)
        if known is None:
            with self._entered(), _typed(self.path):
                known = self._dbs[name] = self._env.open_db(name)
        return known

    @contextmanager
    def read(self) -> Generator[lmdb.Transaction]:
        """A snapshot. Values are views into the map and die with the block."""
        self._enter()
        try:
            txn = self._begin(write=False)
            try:
                yield txn
            finally:
                txn.abort()
        except lmdb.Error as error:
            raise _by_errno(self.path, error) from error
        finally:
            self._leave()

    def write(self, change: Callable[[lmdb.Transaction], T]) -> T:
        """Run a change in one durable transaction. Raises `MapFull` where there is no room: then nothing happened."""
        with self._entered(), _typed(self.path):
            self._env.reader_check()  # readers of killed processes keep pages from being reused
            txn = self._begin(write=True)
            try:
                result = change(txn)
                txn.commit()
            finally:
                txn.abort()  # does nothing after a commit
            return result

    def _begin(self, *, write: bool) -> lmdb.Transaction:
        for _ in range(100):
            try:
                return self._env.begin(write=write, buffers=True)
            except lmdb.MapResizedError:  # another process grew it
                self._leave()
                try:
                    with self._exclusively():
                        self._env.set_mapsize(0)
                finally:
                    self._enter()
        raise StoreUnavailable(f"LMDB at {self.path}: the map keeps growing in another process")

    def grow(self, at_least: int) -> None:
        """Enlarge the map of this process; others adopt it."""
        with self._exclusively(), _typed(self.path):
            self._env.set_mapsize(max(at_least, 2 * self._env.info()["map_size"]))

    def cap(self, nbytes: int) -> None:
        """Set the map of this process to this size, which the file cannot outgrow."""
        with self._exclusively(), _typed(self.path):
            self._env.set_mapsize(max(nbytes, _LEAST_BYTES))

    def file_bytes(self) -> int:
        """The size of the environment's file."""
        return (self.path / DATA).stat().st_size

    def compact(self) -> int:
        """Rewrite the file without its free pages; returns the bytes freed. `StoreBusy` if others have it open."""
        with self._exclusively(), _typed(self.path):
            before = self.file_bytes()
            try:
                self._flock(fcntl.LOCK_EX, 0.0)
                self._rewrite()
            finally:
                self._reopen()
            return before - self.file_bytes()

    def _rewrite(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(mode=0o700)
        rewrite(self._env, self._scratch)
        sync_to_disk(self._scratch / DATA)
        self._env.close()
        (self._scratch / DATA).replace(self.path / DATA)
        sync_to_disk(self.path)

    def _reopen(self) -> None:
        """Opens the file again, also after a refusal: the shared lock was released, and others may have compacted."""
        self._env.close()
        fcntl.flock(self._lock_file, fcntl.LOCK_SH)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._env = self._mapped()
        self._dbs |= {name: self._env.open_db(name) for name in self._dbs}
        self.generation += 1

    @contextmanager
    def _entered(self) -> Generator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        if os.getpid() != self._pid:
            raise StoreClosed(f"{self.path} was opened before a fork: open it again in the child")
        depth = getattr(self._mine, "depth", 0)
        with self._gate:
            if self._alone and depth == 0:  # a thread that is inside must not wait for one that waits for it
                self._gate.wait_for(lambda: not self._alone)
            if self.users < 1:
                raise StoreClosed(f"{self.path} is closed")
            self._active += 1
        self._mine.depth = depth + 1

    def _leave(self) -> None:
        self._mine.depth -= 1
        with self._gate:
            self._active -= 1
            if not self._active:
                self._gate.notify_all()

    @contextmanager
    def _exclusively(self) -> Generator[None]:
        """Waits until this process has no open transaction, and allows none inside the block."""
        if getattr(self._mine, "depth", 0):
            raise StoreBusy(f"{self.path}: the map must grow, but this thread is reading a frame: let go of it first")
        with self._gate:
            self._gate.wait_for(lambda: not self._alone)
            if self.users < 1:
                raise StoreClosed(f"{self.path} is closed")
            self._alone = True
            self._gate.wait_for(lambda: self._active == 0)
        try:
            yield
        finally:
            with self._gate:
                self._alone = False
                self._gate.notify_all()

    def abandon(self) -> None:
        """Drop the copy that a fork made; the parent keeps its own."""
        self._env.close()

    def release(self) -> None:
        """Remove one user; the last one closes the environment, once the last transaction has ended."""
        if self.stale:
            return  # it is the parent's to close
        if getattr(self._mine, "depth", 0):
            raise StoreBusy(f"{self.path} cannot be closed by the thread that is reading a frame: let go of it first")
        with _open_lock, self._gate:
            if self.users == 0:
                return
            if self.users == 1:
                self._gate.wait_for(lambda: self._active == 0 and not self._alone)
                _open.pop(self.path, None)
                self._env.close()
                if self._is_locked_alone() and self._left_as is LeftAs.IN_USE:
                    mark(self._lock_file, LeftAs.CLEAN)
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)  # a forked child may have the file open still
                os.close(self._lock_file)
            self.users -= 1


def open_environment(path: Path, map_bytes: int) -> Environment:
    """The environment of this path, opened at the first call."""
    path = path.absolute()
    with _open_lock:
        known = _open.get(path)
        if known is not None and known.stale:
            known.abandon()
            known = None
        if known is None:
            known = _open[path] = Environment(path, map_bytes)
        known.users += 1
        return known
