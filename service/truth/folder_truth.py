"""Keys and catalogs in one folder: SQLite files, of which one process at a time is the service."""

import fcntl
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from retriever.catalog.check import CatalogReport, check_catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.errors import CatalogError
from service.access.private import private_file, private_folder, write_private
from service.access.rates import Rates
from service.errors import AccessError
from service.truth.control import Control
from service.truth.databases import (
    CATALOG,
    CONTROL,
    POINTS,
    TENANTS,
    catalogs,
    copy_database,
    databases,
    gathering,
    hold,
    name_anew,
)
from service.truth.peers import Peers


class FolderTruth:
    """See `Truth`."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._folder = data / TENANTS
        self._points = data / POINTS
        self.peers = Peers()

    def serve(self, on_loss: Callable[[str], None]) -> AbstractContextManager[None]:
        """One process at a time."""
        return self.hold(on_loss)

    def hold(self, on_loss: Callable[[str], None]) -> AbstractContextManager[None]:
        """Nobody can take the folder from who has it."""
        return hold(self._data)

    def precompute(self, tenant: str, *, shared: bool) -> AbstractContextManager[None]:
        return alone(self._data, tenant, shared=shared)

    def control(self) -> Control:
        return Control(self._data / CONTROL)

    def rates(self) -> Rates:
        return Rates()

    def tenants(self) -> list[str]:
        return [path.parent.name for path in catalogs(self._data)]

    def catalog(self, tenant: str) -> SqliteCatalog:
        """The file, and what SQLite keeps beside it, are for their owner alone."""
        folder = self._folder / tenant
        path = folder / CATALOG
        try:
            private_folder(folder)
            for file in {path, *folder.glob(f"{CATALOG}-*")}:
                private_file(file)
        except AccessError as error:
            raise CatalogError(str(error)) from error
        return SqliteCatalog(path)

    def check(self, tenant: str) -> CatalogReport:
        return check_catalog(self._folder / tenant / CATALOG)

    def copy_catalog(self, tenant: str, file: Path) -> None:
        private_folder(file.parent)
        copy_database(self._folder / tenant / CATALOG, file)
        name_anew(file)
        SqliteCatalog(file).close()  # an older one becomes one of today

    def copy_control(self, file: Path) -> None:
        self.control().close()  # made where there is none
        copy_database(self._data / CONTROL, file)

    @contextmanager
    def receive(self) -> Generator[Path]:
        there = next(databases(self._data), None)
        if there is not None:
            name = there.relative_to(self._data)
            raise AccessError(f"{self._data} holds {name} already: name an empty folder, or move it away")
        with gathering(self._data) as folder:
            yield folder
            for path in catalogs(folder):
                report = check_catalog(path)
                if report.damaged or report.wrong:
                    raise AccessError(f"the catalog of {path.parent.name!r} is not sound: see what kvweave verify says")

    def bring_points(self, folder: Path) -> None:
        """A service finds them where they are: in the folder of the data."""
        for file in sorted(self._points.glob("*.toml")):
            _put_point(file, folder)

    def keep_point(self, file: Path) -> None:
        _put_point(file, self._points)

    def close(self) -> None:
        """Each catalog is closed by who opened it."""


def _put_point(file: Path, folder: Path) -> None:
    if file.parent != folder:
        private_folder(folder)
        write_private(folder / file.name, file.read_bytes())


@contextmanager
def alone(data: Path, tenant: str, *, shared: bool) -> Generator[None]:
    """Locks a tenant's folder on this machine against other runs."""
    folder = data / TENANTS / tenant
    private_folder(data)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = folder / "precompute.lock"
    private_file(lock)
    with lock.open("rb") as held:
        try:
            fcntl.flock(held, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AccessError(f"another precompute works for tenant {tenant!r}: wait for its end") from None
        yield
