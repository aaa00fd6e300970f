"""Who has the data folder for itself: a service that runs, or a restore. Knows nothing of keys and documents."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from service.access.move import finish_move
from service.access.private import private_file, private_folder, write_for_owner_only
from service.errors import AccessError

LOCK = "server.lock"


@contextmanager
def hold(folder: Path) -> Generator[None]:
    """Locks the folder until the block, or the process, ends. A restore that was killed midway is ended first."""
    write_for_owner_only()
    private_folder(folder)
    private_file(folder / LOCK)
    with (folder / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AccessError(
                f"{folder} is in use by another service: stop it, or name another folder for the data"
            ) from None
        finish_move(folder)
        yield
