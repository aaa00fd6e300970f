"""Which words stand in which passages, as a database keeps it. Scores nothing and reads no text."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from retriever.catalog.connection import CatalogConnection, Fetched

Bodies = Sequence[tuple[int, Sequence[str]]]  # passages, each with its terms in the order of the text


class WordTable(Protocol):
    """The table of words of one database. Each call is part of the caller's transaction."""

    @property
    def version(self) -> int | str:
        """What the catalog keeps to tell by which rules the words in the table were made."""
        ...

    def put(self, connection: CatalogConnection, bodies: Bodies) -> None:
        """Put passages in."""
        ...

    def remove(self, connection: CatalogConnection, bodies: Bodies) -> None:
        """Take passages out, told with the terms that were put in."""
        ...

    def clear(self, connection: CatalogConnection) -> None:
        """Take all passages out."""
        ...

    def purge(self, connection: CatalogConnection) -> None:
        """Forget the words of what was taken out, where the table still has them."""
        ...

    def holds(self, connection: CatalogConnection, bodies: Iterable[Bodies]) -> bool:
        """Whether the table has these passages, told in their order, each with its terms, and no others."""
        ...

    def rows(self, connection: CatalogConnection, term: str, *, after: int, limit: int) -> list[Fetched]:
        """The passages (row,) behind `after` in which a term stands, ascending, each once; -1 for no limit.

        A term that ends in * stands for all that begin so.
        """
        ...
