"""Errors of LMDB and of the system as errors of the store, each with its remedy."""

import errno
import os
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from store.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable
from store.lmdb.broken import DATA

PAGE_BYTES = 4096
_NEARLY_FULL_BYTES = 1 << 20


class MapFull(Exception):
    """The map has no room for this transaction; nothing of it was written."""


@contextmanager
def typed(path: Path) -> Generator[None]:
    """Raises the errors of LMDB and of the system as errors of the store, with the remedy."""
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
        raise by_errno(path, error) from error


def by_errno(path: Path, error: Exception) -> StoreError:
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
    """Whether no more can be written: LMDB calls a write that was cut short an I/O error."""
    disk, (limit, _) = os.statvfs(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    is_limited = limit != resource.RLIM_INFINITY and (path / DATA).stat().st_size > limit - PAGE_BYTES
    return is_limited or disk.f_bavail * disk.f_frsize < _NEARLY_FULL_BYTES
