"""Where the control database's rows are. Knows no key and no tenant."""

from contextlib import AbstractContextManager
from typing import Protocol

from retriever.catalog.connection import CatalogConnection


class ControlStore(Protocol):
    """The tables of one control database. Safe for threads; other processes may have them open.

    Raises Unavailable where they cannot be used.
    """

    def read(self) -> AbstractContextManager[CatalogConnection]: ...

    def change(self) -> AbstractContextManager[CatalogConnection]:
        """All that is done in the block happens, or nothing."""
        ...

    def version(self, connection: CatalogConnection) -> int:
        """What is another number as soon as somebody wrote."""
        ...

    def close(self) -> None:
        """Closes it; a second call is safe. Whatever comes after it raises Unavailable."""
        ...
