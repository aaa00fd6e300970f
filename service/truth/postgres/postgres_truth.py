"""Keys and catalogs in one PostgreSQL database, of which any number of processes on any machines are the service."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from zlib import crc32

from retriever.catalog.check import CatalogReport, check
from retriever.errors import CatalogError
from retriever.postgres.catalog import RESTING, VIEW, PostgresCatalog, open_catalog
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import schema_of, tenants_in
from service.access.private import private_folder, write_private
from service.access.rates import Rates
from service.errors import AccessError
from service.truth.control import Control
from service.truth.databases import hold
from service.truth.postgres.control_tables import ControlTables
from service.truth.postgres.gathered import copy_catalog, copy_control, gathered
from service.truth.postgres.postgres_peers import PostgresPeers
from service.truth.postgres.replica import Replica
from service.truth.postgres.server_lock import ServerLock

_PRECOMPUTES = 1802925924  # the server's lock has the number before


class PostgresTruth:
    """See `Truth`. `folder` is this machine's, for what may be lost; `caches` tells where all services have theirs."""

    def __init__(self, url: str, folder: Path, *, caches: str = "") -> None:
        """Opens the database. Raises CatalogError."""
        self._database = PostgresDatabase(url)
        self._control = ControlTables(self._database)
        self._folder = folder
        self._caches = caches
        self.peers: PostgresPeers = PostgresPeers(self._database)

    @contextmanager
    def serve(self, on_loss: Callable[[str], None]) -> Generator[None]:
        with hold(self._folder), closing(Replica(self._database, store=self._caches, on_loss=on_loss)) as replica:
            replica.take()
            self.peers = replica
            yield

    @contextmanager
    def hold(self, on_loss: Callable[[str], None]) -> Generator[None]:
        with hold(self._folder), closing(ServerLock(self._database, on_loss)) as lock:
            lock.take()
            yield

    @contextmanager
    def precompute(self, tenant: str, *, shared: bool) -> Generator[None]:
        private_folder(self._folder)
        take = f"SELECT pg_try_advisory_lock{'_shared' if shared else ''}({_PRECOMPUTES}, CAST(? AS INTEGER))"
        with self._database.session() as raw:
            number = crc32(tenant.encode()) - (1 << 31)
            if self._database.watched(raw).execute(take, (number,)).fetchone() != (True,):
                raise AccessError(f"another precompute works for tenant {tenant!r}: wait for its end")
            try:
                yield
            finally:  # with the session it would go a little later, and the next run be refused
                with suppress(CatalogError):
                    self._database.watched(raw).execute("SELECT pg_advisory_unlock_all()")

    def control(self) -> Control:
        return Control(self._control)

    def rates(self) -> Rates:
        return Rates(self.peers.count)

    def tenants(self) -> list[str]:
        return tenants_in(self._database)

    def catalog(self, tenant: str) -> PostgresCatalog:
        return open_catalog(self._database, tenant)

    def check(self, tenant: str) -> CatalogReport:
        """Pages and indexes are the server's own to check."""
        self.catalog(tenant).close()  # an older one becomes one of today
        with self._database.transaction(VIEW + RESTING, schema=schema_of(tenant)) as connection:
            return check(connection)

    def copy_catalog(self, tenant: str, file: Path) -> None:
        copy_catalog(self._database, tenant, file=file)

    def copy_control(self, file: Path) -> None:
        copy_control(self._control, file)

    def receive(self) -> AbstractContextManager[Path]:
        return gathered(self._database, self._control)

    def bring_points(self, folder: Path) -> None:
        with self._control.read() as connection:
            found = connection.execute("SELECT weights, point FROM points").fetchall()
        if found:
            private_folder(folder)
        for weights, point in found:
            write_private(folder / f"{weights}.toml", point.encode())

    def keep_point(self, file: Path) -> None:
        with self._control.change() as connection:
            connection.execute(
                "INSERT INTO points VALUES (?, ?) ON CONFLICT (weights) DO UPDATE SET point = excluded.point",
                (file.stem, file.read_bytes().decode()),
            )

    def close(self) -> None:
        self._control.close()
        self._database.close()
