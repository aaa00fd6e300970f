"""Databases that take the place of others, all of them even if the process is killed between two. Knows no archive.

They are gathered in one folder and synced. From the moment that this folder bears the name `restoring`, the move is
decided, and whoever opens the data folder next brings it to its end.
"""

from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

from service.access.private import private_folder, sync_folder

RESTORING, STAGING = "restoring", "staging"
CONTROL, CATALOG, TENANTS, ADMIN_KEY = "control.sqlite", "catalog.sqlite", "tenants", "admin.key"
POINTS = "points"

_LOGS = ("-wal", "-shm", "-journal")


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
    yield from (path for path in (folder / CONTROL, *sorted(folder.glob(f"{TENANTS}/*/{CATALOG}"))) if path.is_file())


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
