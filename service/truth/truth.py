"""Where keys and catalogs are kept: what the rest of a service knows of it. Knows no database."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from retriever.catalog.catalog import Catalog
from retriever.catalog.check import CatalogReport
from service.access.rates import Rates
from service.truth.control import Control
from service.truth.peers import Peers


class Truth(Protocol):
    """Keys and catalogs of one service. Safe for threads."""

    @property
    def peers(self) -> Peers:
        """The other services. Those of who serves, from `serve` on."""
        ...

    def serve(self, on_loss: Callable[[str], None]) -> AbstractContextManager[None]:
        """Is a service of it while the block runs; raises AccessError where that cannot be beside those that are.

        `on_loss` is told, in a thread, the reason for which it is no more.
        """
        ...

    def hold(self, on_loss: Callable[[str], None]) -> AbstractContextManager[None]:
        """Has it for itself while the block runs; raises AccessError where another service does.

        `on_loss` is told, in a thread, when somebody else has it after all.
        """
        ...

    def precompute(self, tenant: str, *, shared: bool) -> AbstractContextManager[None]:
        """Keeps others from precomputing for the tenant, but for those that share it. Raises AccessError."""
        ...

    def control(self) -> Control: ...

    def rates(self) -> Rates:
        """How often keys may ask, counted over all services."""
        ...

    def tenants(self) -> list[str]:
        """The names of tenants that have a catalog."""
        ...

    def catalog(self, tenant: str) -> Catalog:
        """The catalog of a tenant, made where there is none. Raises CatalogError."""
        ...

    def check(self, tenant: str) -> CatalogReport:
        """Looks at each row of a catalog. Raises CatalogError."""
        ...

    def copy_catalog(self, tenant: str, file: Path) -> None:
        """Writes a catalog, as it is at one moment, into a new file as backups have it. Raises AccessError."""
        ...

    def copy_control(self, file: Path) -> None:
        """Writes the control database into a new file."""
        ...

    def receive(self) -> AbstractContextManager[Path]:
        """A folder for files as backups have them. When the block ends well, their keys and catalogs are here.

        By who holds this place. Raises AccessError where there are some already.
        """
        ...

    def bring_points(self, folder: Path) -> None:
        """Bring the operating points that were chosen elsewhere into the folder of those that were chosen here."""
        ...

    def keep_point(self, file: Path) -> None:
        """Keep an operating point, for all who bring them."""
        ...

    def close(self) -> None: ...
