"""Copies tables between databases, and tells whether two hold the same. Knows no database and no documents.

What follows from other rows is not copied but made: filters from metadata, words from texts. A copy has a name of its
own, so that nothing derived from the catalog that it was made of is taken for current.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from itertools import zip_longest
from typing import Final, NamedTuple

from retriever.catalog.check import check
from retriever.catalog.connection import CatalogConnection, Fetched
from retriever.catalog.renew import index_anew
from retriever.catalog.schema import STEPS

_OWN: Final = "name NOT IN ('catalog', 'analysis')"  # facts that are not a copy's
_BATCH: Final = 1000
_LARGE: Final = ("contents",)  # whole files: each alone


class Table(NamedTuple):
    """A table that is copied."""

    name: str
    columns: tuple[str, ...]


def copy_tables(source: CatalogConnection, target: CatalogConnection) -> None:
    """Copies a catalog into a new one."""
    target.execute(f"DELETE FROM facts WHERE {_OWN}")
    for table in _tables(STEPS):
        copy_table(source, target, table=table)
    index_anew(target)
    target.number_on(source.numbers())


def unlike(source: CatalogConnection, target: CatalogConnection) -> str | None:
    """What is not the same in both; None where all is, and all that follows from it is right in the copy."""
    for table in _tables(STEPS):
        if not is_same_table(source, target, table=table):
            return table.name
    if source.numbers() != target.numbers():
        return "numbers"
    report = check(target)
    return ", ".join((*report.damaged, *report.wrong)) or None


@cache
def tables_of(steps: tuple[str, ...]) -> list[Table]:
    """The tables that are there after these steps, with their columns, but for those of words."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for step in steps:
            for statement in step.split(";\n"):
                connection.execute(statement)
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        kept = [name for (name,) in names if not name.startswith(("sqlite_", "terms"))]
        columns = "SELECT name FROM pragma_table_info(?)"
        return [Table(name, tuple(column for (column,) in connection.execute(columns, (name,)))) for name in kept]


def count_rows(connection: CatalogConnection, steps: tuple[str, ...]) -> int:
    """How many rows there are in all tables, but for those that are made of others."""
    found = [connection.execute(f"SELECT count(*) FROM {table.name}").fetchone() for table in _tables(steps)]
    return sum(count for (count,) in found)


def copy_table(source: CatalogConnection, target: CatalogConnection, *, table: Table) -> None:
    """Copies a table into an empty one."""
    places = ", ".join("CAST(? AS TEXT)" if _is_bytes(table.name, each) else "?" for each in table.columns)
    for batch in _batches(source, table):
        target.executemany(f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})", batch)


def is_same_table(one: CatalogConnection, other: CatalogConnection, *, table: Table) -> bool:
    """Whether two tables have the same rows."""
    batches = zip_longest(_batches(one, table), _batches(other, table))
    return all(found == expected for found, expected in batches)


def _tables(steps: tuple[str, ...]) -> list[Table]:
    return [table for table in tables_of(steps) if table.name != "facets"]


def _batches(connection: CatalogConnection, table: Table) -> Iterator[list[Fetched]]:
    """Yields all rows: by their numbers, or, where they have none, in one order."""
    name, columns = table.name, table.columns
    named = ", ".join(f"CAST({each} AS BLOB)" if _is_bytes(name, each) else each for each in columns)
    if columns[0] not in ("row", "upload"):
        where = f" WHERE {_OWN}" if name == "facts" else ""
        if found := connection.execute(f"SELECT {named} FROM {name}{where}").fetchall():
            yield sorted(found, key=repr)
        return
    some, last = 1 if name in _LARGE else _BATCH, -1
    told = f"SELECT {named} FROM {name} WHERE {columns[0]} > ? ORDER BY {columns[0]} LIMIT ?"
    while found := connection.execute(told, (last, some)).fetchall():
        yield found
        last = found[-1][0]


def _is_bytes(table: str, column: str) -> bool:
    """Texts of chunks are bytes in some databases, and whatever is damaged in one is not decoded."""
    return (table, column) == ("chunks", "text")
