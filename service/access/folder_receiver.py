"""A data folder that takes over keys and catalogs of another place. They are gathered beside it first."""

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import rmtree

from retriever.catalog.connection import CatalogConnection
from retriever.catalog.schema import transaction
from retriever.catalog.sqlite import SqliteCatalog
from retriever.catalog.sqlite_connection import SqliteConnection, beside
from service.access.control_file import ControlFile
from service.access.move import CATALOG, CONTROL, STAGING, TENANTS, databases, decide_move, finish_move
from service.access.private import private_folder
from service.errors import AccessError


class FolderReceiver:
    """See `Receiver`. The folder is held by who makes one."""

    def __init__(self, data: Path) -> None:
        """Raises AccessError where the folder holds something."""
        there = next(databases(data), None)
        if there is not None:
            raise AccessError(f"{data} holds {there.relative_to(data)} already: name an empty folder, or move it away")
        self._data = data
        self._staging = data / STAGING
        self.clear()
        private_folder(self._staging)

    @contextmanager
    def catalog(self, tenant: str) -> Generator[SqliteConnection]:
        path = self._staging / TENANTS / tenant / CATALOG
        SqliteCatalog(path).close()
        with beside(path) as connection, transaction(connection):
            yield connection

    @contextmanager
    def control(self) -> Generator[CatalogConnection]:
        with closing(ControlFile(self._staging / CONTROL)) as control, control.change() as connection:
            yield connection
        decide_move(self._staging, self._data)
        finish_move(self._data)

    def clear(self) -> None:
        """Removes what was gathered and never moved, also by a process that was killed."""
        rmtree(self._staging, ignore_errors=True)
