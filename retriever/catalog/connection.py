"""What the statements of this package run on. They are written for SQLite; another database's connection translates."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

Fetched: TypeAlias = (
    Any  # a row, as wide as the statement says, or None where there is none; as SQLite's own types have it
)


class FetchedRows(Protocol):
    """What a statement found."""

    def fetchone(self) -> Fetched: ...
    def fetchall(self) -> list[Fetched]: ...
    def __iter__(self) -> Iterator[Fetched]: ...


class CatalogConnection(Protocol):
    """One transaction on the tables of one catalog."""

    def execute(self, sql: str, values: Sequence[object] = ..., /) -> FetchedRows: ...
    def executemany(self, sql: str, rows: Iterable[Sequence[object]], /) -> FetchedRows: ...
