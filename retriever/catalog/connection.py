"""The interface of a catalog's connection: statements in SQLite's words, table of words, filter values, row numbers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

Fetched: TypeAlias = (
    Any  # a row, as wide as the statement says, or None where there is none; as SQLite's own types have it
)
Bodies = Sequence[tuple[int, Sequence[str]]]  # passages, each with its terms in the order of the text


class FetchedRows(Protocol):
    """What a statement found."""

    def fetchone(self) -> Fetched: ...
    def fetchall(self) -> list[Fetched]: ...
    def __iter__(self) -> Iterator[Fetched]: ...


class CatalogConnection(Protocol):
    """One transaction on the tables of one catalog, and what each database keeps in its own way: the table of words,
    the values that filters compare, the numbers of rows.
    """

    def execute(self, sql: str, values: Sequence[object] = ..., /) -> FetchedRows: ...
    def executemany(self, sql: str, rows: Iterable[Sequence[object]], /) -> FetchedRows: ...

    @property
    def analysis(self) -> int | str:
        """What the catalog keeps to tell by which rules words and values of filters were made."""
        ...

    def put_words(self, bodies: Bodies) -> None:
        """Put passages into the table of words."""
        ...

    def remove_words(self, bodies: Bodies) -> None:
        """Take passages out, told with the terms that were put in."""
        ...

    def clear_words(self) -> None:
        """Take all passages out."""
        ...

    def purge_words(self) -> None:
        """Forget the words of what was taken out, where the table still has them."""
        ...

    def holds_words(self, bodies: Iterable[Bodies]) -> bool:
        """Whether the table has these passages, told in their order, each with its terms, and no others."""
        ...

    def rows_of_word(self, term: str, *, after: int, limit: int) -> list[Fetched]:
        """The passages (row,) behind `after` in which a term stands, ascending, each once; -1 for no limit.

        A term that ends in * stands for all that begin so.
        """
        ...

    def facet(self, field: str, value: object) -> tuple[object, object]:
        """A field and its value as `facets` has them."""
        ...

    def numbers(self) -> dict[str, int]:
        """The last number that each table gave to a row, but for tables that gave none or give it again."""
        ...

    def number_on(self, numbers: Mapping[str, int]) -> None:
        """Go on behind these numbers, and behind the rows that are there."""
        ...
