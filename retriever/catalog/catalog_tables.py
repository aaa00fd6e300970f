"""The tables of one catalog as a check and a copy need them: row by row. Knows no documents."""

from collections.abc import Mapping
from typing import Protocol

from retriever.catalog.connection import CatalogConnection
from retriever.catalog.word_table import WordTable


class CatalogTables(Protocol):
    """One transaction on the tables, and what each database keeps in its own way."""

    @property
    def connection(self) -> CatalogConnection: ...

    @property
    def words(self) -> WordTable: ...

    def facet(self, field: str, value: object) -> tuple[object, object]:
        """A field and its value as `facets` has them."""
        ...

    def numbers(self) -> dict[str, int]:
        """The last number that each table gave to a row, but for tables that gave none or give it again."""
        ...

    def number_on(self, numbers: Mapping[str, int]) -> None:
        """Go on behind these numbers, and behind the rows that are there."""
        ...
