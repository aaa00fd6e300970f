"""Folders and files that only their owner may read, written whole and synced; refuses a folder that others need."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from service.errors import AccessError

_OTHERS = 0o077


def write_for_owner_only() -> None:
    """Makes whatever this process writes from now on its owner's alone: libraries make files of their own."""
    os.umask(_OTHERS)


def private_folder(folder: Path) -> None:
    """Makes the folder, or takes the rights of all others away. Raises AccessError where that cannot be done."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise AccessError(f"the folder {folder} cannot be made ({error.strerror}): name another") from error
    if not found.st_mode & _OTHERS:
        return
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
        raise AccessError(f"the folder {folder} is open to others who need it: name one below it, that is to be made")
    folder.chmod(0o700)


def private_file(path: Path) -> None:
    """Makes an empty file, or takes the rights of all others away. What SQLite makes beside it gets the same ones."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AccessError(f"the file {path} cannot be opened to write ({error.strerror}): mend its rights") from error
    try:
        if os.fstat(descriptor).st_mode & _OTHERS:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def new_private_file(path: Path) -> BinaryIO:
    """Opens a new file to write into. Raises FileExistsError for one that is there, whoever made it."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def finish_file(file: BinaryIO) -> None:
    """Closes a file when its bytes are on the disk."""
    with file:
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Returns when the names in the folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes) -> None:
    """Writes a file in the place of whatever was there, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.unlink(missing_ok=True)  # of a process that was killed
    file = new_private_file(unfinished)
    with file:
        file.write(content)
        finish_file(file)
    unfinished.replace(path)
    sync_folder(path.parent)
