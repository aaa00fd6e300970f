"""Keys and catalogs in one folder: SQLite files, of which one process at a time is the service."""

import fcntl
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from retriever.catalog.check import CatalogReport, check_catalog
from retriever.catalog.connection import CatalogConnection
from retriever.catalog.sqlite import SqliteCatalog
from retriever.catalog.sqlite_connection import beside
from retriever.errors import CatalogError
from service.access.control import Control
from service.access.control_file import ControlFile
from service.access.folder_receiver import FolderReceiver
from service.access.lock import hold
from service.access.move import CATALOG, CONTROL, POINTS, TENANTS
from service.access.peers import NoPeers
from service.access.private import private_file, private_folder, write_private
from service.access.rates import Rates
from service.errors import AccessError


class FolderTruth:
    """See `Truth`."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._folder = data / TENANTS
        self._points = data / POINTS
        self.peers = NoPeers()

    def serve(self, on_loss: Callable[[str], None]) -> AbstractContextManager[None]:
        """One process at a time."""
        return self.hold(on_loss)

    @contextmanager
    def hold(self, on_loss: Callable[[str], None]) -> Generator[None]:
        """Nobody can take the folder from who has it."""
        with hold(self._data):
            yield

    @contextmanager
    def precompute(self, tenant: str, *, shared: bool) -> Generator[None]:
        with alone(self._data, tenant, shared=shared):
            yield

    def control(self) -> Control:
        return Control(self._data / CONTROL)

    def rates(self) -> Rates:
        return Rates()

    def tenants(self) -> list[str]:
        return sorted(path.parent.name for path in self._folder.glob(f"*/{CATALOG}"))

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

    @contextmanager
    def tables(self, tenant: str) -> Generator[CatalogConnection]:
        self.catalog(tenant).close()  # an older one becomes one of today
        with beside(self._folder / tenant / CATALOG) as connection:
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def rows(self) -> Generator[CatalogConnection]:
        with closing(ControlFile(self._data / CONTROL)) as control, control.read() as connection:
            yield connection

    @contextmanager
    def receive(self) -> Generator[FolderReceiver]:
        receiver = FolderReceiver(self._data)
        try:
            yield receiver
        finally:
            receiver.clear()

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
