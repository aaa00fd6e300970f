"""A PostgreSQL database that takes over keys and catalogs of another place, in schemas that nobody serves before."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from retriever.catalog.table_copy import tables_of
from retriever.postgres.connection import PostgresConnection
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import tenants_in
from retriever.postgres.staged_schemas import StagedSchemas
from service.access.schema import STEPS
from service.errors import AccessError
from service.postgres.control_tables import ControlTables


class PostgresReceiver:
    """See `Receiver`. The database is held by who makes one."""

    def __init__(self, database: PostgresDatabase, control: ControlTables) -> None:
        """Raises AccessError where the database holds something."""
        self._control = control
        self._schemas = StagedSchemas(database)
        with control.read() as connection:
            held = [f"catalog of {tenant!r}" for tenant in tenants_in(database)]
            held += [
                each.name for each in tables_of(STEPS) if connection.execute(f"SELECT 1 FROM {each.name}").fetchone()
            ]
        if held:
            raise AccessError(f"the database holds something already, the {held[0]}: name an empty one")
        self.clear()

    def catalog(self, tenant: str) -> AbstractContextManager[PostgresConnection]:
        return self._schemas.change(tenant)

    @contextmanager
    def control(self) -> Generator[PostgresConnection]:
        with self._control.change() as connection:
            yield connection
            self._schemas.serve(connection)

    def clear(self) -> None:
        """Drops what was gathered and is not served, also by a process that was killed."""
        self._schemas.clear()
