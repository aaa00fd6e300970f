"""The databases of a folder: who has them, how they are copied, and take the place of others, all of them even if the
process is killed between two. Knows no archive.

They are gathered in one folder and synced. From the moment that this folder bears the name `restoring`, the move is
decided, and whoever opens the data folder next brings it to its end.
"""

import fcntl
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import rmtree

from service.access.private import private_file, private_folder, sync_folder, write_for_owner_only
from service.errors import AccessError

RESTORING, STAGING = "restoring", "staging"
CONTROL, CATALOG, TENANTS, ADMIN_KEY = "control.sqlite", "catalog.sqlite", "tenants", "admin.key"
POINTS = "points"

LOCK = "server.lock"

_LOGS = ("-wal", "-shm", "-journal")


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


def copy_database(path: Path, copy: Path) -> None:
    """Copies a database into a new file, all pages in one step: one committed state, and no writer waits for it."""
    private_file(copy)
    try:
        with (
            closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=60)) as source,
            closing(sqlite3.connect(copy, isolation_level=None)) as target,
        ):
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
            [found] = target.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        raise AccessError(f"{path} cannot be read ({error}): restore an older backup") from error
    if found != "ok":
        raise AccessError(f"{path} is damaged ({found.splitlines()[-1]}): restore an older backup")


@contextmanager
def gathering(folder: Path) -> Generator[Path]:
    """Yields a folder for databases. When the block ends well, they take the place of those in `folder`."""
    staging = folder / STAGING
    rmtree(staging, ignore_errors=True)  # of a process that was killed
    private_folder(staging)
    try:
        yield staging
        decide_move(staging, folder)
        finish_move(folder)
    finally:
        rmtree(staging, ignore_errors=True)


def name_anew(catalog: Path) -> None:
    """Gives a copy of a catalog a name of its own: what is derived from another state of it is not its own."""
    with closing(sqlite3.connect(catalog, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("UPDATE facts SET value = hex(randomblob(8)) WHERE name = 'catalog'")


def decide_move(gathered: Path, folder: Path) -> None:
    """Decides the move: what lies in `gathered`, in the folders of `folder`, is the truth from now on."""
    for each in (gathered, *(each for each in gathered.rglob("*") if each.is_dir())):
        sync_folder(each)
    gathered.rename(folder / RESTORING)
    sync_folder(folder)


def finish_move(folder: Path) -> None:
    """Puts everything in its place. Does nothing where no move was decided."""
    gathered = folder / RESTORING
    if not gathered.is_dir():
        return
    for file in databases(gathered):
        _put(file, folder / file.relative_to(gathered))
    rmtree(gathered)  # empty folders
    sync_folder(folder)


def databases(folder: Path) -> Iterator[Path]:
    """The control database and the catalogs that are there."""
    yield from (path for path in (folder / CONTROL, *catalogs(folder)) if path.is_file())


def catalogs(folder: Path) -> list[Path]:
    """The catalogs that are there, by the names of their tenants."""
    return sorted(folder.glob(f"{TENANTS}/*/{CATALOG}"))


def _put(file: Path, place: Path) -> None:
    """Puts a database in its place. The logs go first: SQLite would replay them onto whatever file has the name."""
    if place.name == CATALOG:
        private_folder(place.parent.parent)
        private_folder(place.parent)
        for index in place.parent.rglob(
            "vectors-*"
        ):  # files of the catalog that goes; made again from the one that comes
            index.unlink()
    for log in _LOGS:
        place.with_name(f"{place.name}{log}").unlink(missing_ok=True)
    sync_folder(place.parent)
    file.replace(place)
    sync_folder(place.parent)
