"""What takes over keys and catalogs of another place: all of them, at once. Knows no database."""

from contextlib import AbstractContextManager
from typing import Protocol

from retriever.catalog.connection import CatalogConnection


class Receiver(Protocol):
    """A place where nothing is yet, and nothing is until `control` has ended."""

    def catalog(self, tenant: str) -> AbstractContextManager[CatalogConnection]:
        """The tables of a tenant's catalog, to be changed; made where there are none."""
        ...

    def control(self) -> AbstractContextManager[CatalogConnection]:
        """The tables of the control database. When the block ends well, this and all catalogs are the truth."""
        ...
