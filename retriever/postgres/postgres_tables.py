"""The tables of a catalog in one schema of PostgreSQL, opened beside those who use it."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from retriever.catalog.connection import CatalogConnection
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.facet_keys import facet_key, field_key
from retriever.postgres.lexemes import Lexemes

_GIVEN = """
SELECT replace(sequencename, '_row_seq', ''), last_value FROM pg_sequences
WHERE schemaname = current_schema() AND last_value IS NOT NULL AND sequencename <> 'labels_row_seq'
"""


class PostgresTables:
    """See `CatalogTables`."""

    def __init__(self, connection: CatalogConnection) -> None:
        self.connection = connection
        self.words = Lexemes()

    def facet(self, field: str, value: object) -> tuple[object, object]:
        return field_key(field), facet_key(value)

    def numbers(self) -> dict[str, int]:
        return dict(self.connection.execute(_GIVEN).fetchall())

    def number_on(self, numbers: Mapping[str, int]) -> None:
        [last] = self.connection.execute("SELECT coalesce(max(row), 0) FROM labels").fetchone()
        for name, number in {**numbers, **({"labels": last} if last else {})}.items():
            self.connection.execute("SELECT setval(pg_get_serial_sequence(?, 'row'), ?)", (name, number))
            self.connection.execute("UPDATE numbered SET seq = ? WHERE name = ?", (number, name))


@contextmanager
def open_tables(database: PostgresDatabase, schema: str, *, begin: str) -> Generator[PostgresTables]:
    """The tables of a catalog that is there, in one transaction: begun as `VIEW` or as `CHANGE`."""
    with database.transaction(begin, schema=schema) as connection:
        connection.script("SET LOCAL idle_in_transaction_session_timeout = 0")  # between two rows much may be computed
        yield PostgresTables(connection)
