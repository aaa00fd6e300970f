"""Keys and catalogs that come into a database out of files in the form of a backup, and go out into such files.

What comes is gathered in schemas that nobody serves, and becomes the truth all at once.
"""

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from retriever.catalog import schema as catalog_schema
from retriever.catalog.connection import CatalogConnection
from retriever.catalog.schema import transaction
from retriever.catalog.sqlite import SqliteCatalog
from retriever.catalog.sqlite_connection import beside
from retriever.catalog.table_copy import copy_table, copy_tables, is_same_table, tables_of, unlike
from retriever.postgres.catalog import RESTING, VIEW, open_catalog
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.rewriting import CHANGE
from retriever.postgres.schemas import STAGED, drop_staged, prepare, schema_of, serve_staged, tenants_in
from service.errors import AccessError
from service.truth.control_file import STEPS, ControlFile
from service.truth.databases import CONTROL, catalogs
from service.truth.postgres.control_tables import ControlTables


def copy_catalog(database: PostgresDatabase, tenant: str, *, file: Path) -> None:
    """Writes a tenant's catalog into a new file. Raises AccessError where it does not become the same."""
    open_catalog(database, tenant).close()  # an older one becomes one of today
    SqliteCatalog(file).close()
    reading = database.transaction(VIEW + RESTING, schema=schema_of(tenant))
    with reading as source, beside(file) as target, transaction(target):
        _copy(source, target, tenant=tenant)


def copy_control(control: ControlTables, file: Path) -> None:
    """Writes the control database into a new file."""
    with closing(ControlFile(file)) as store, control.read() as source, store.change() as target:
        _copy_keys(source, target)


@contextmanager
def gathered(database: PostgresDatabase, control: ControlTables) -> Generator[Path]:
    """A folder for files: when the block ends well, what is in them is in the database, which its caller holds.

    Raises AccessError where the database holds something.
    """
    _check_empty(database, control)
    drop_staged(database)
    try:
        with TemporaryDirectory(prefix="kvweave-") as name:
            folder = Path(name)
            yield folder
            schemas = {path.parent.name: f"{STAGED}{number}" for number, path in enumerate(catalogs(folder))}
            for path in catalogs(folder):
                _take(database, path, schema=schemas[path.parent.name])
            with closing(ControlFile(folder / CONTROL)) as store, store.read() as source, control.change() as target:
                _copy_keys(source, target)
                for tenant, schema in schemas.items():
                    serve_staged(target, schema, tenant=tenant)
    finally:
        drop_staged(database)


def _check_empty(database: PostgresDatabase, control: ControlTables) -> None:
    with control.read() as connection:
        held = [f"catalog of {tenant!r}" for tenant in tenants_in(database)]
        held += [each.name for each in tables_of(STEPS) if connection.execute(f"SELECT 1 FROM {each.name}").fetchone()]
    if held:
        raise AccessError(f"the database holds something already, the {held[0]}: name an empty one")


def _take(database: PostgresDatabase, file: Path, *, schema: str) -> None:
    prepare(database, schema, steps=catalog_schema.STEPS)
    with beside(file) as source, database.transaction(CHANGE + RESTING, schema=schema) as target:
        _copy(source, target, tenant=file.parent.name)


def _copy(source: CatalogConnection, target: CatalogConnection, *, tenant: str) -> None:
    copy_tables(source, target)
    what = unlike(source, target)
    if what is not None:
        raise _not_the_same(f"{what} of tenant {tenant!r}")


def _copy_keys(source: CatalogConnection, target: CatalogConnection) -> None:
    for table in tables_of(STEPS):
        copy_table(source, target, table=table)
        if not is_same_table(source, target, table=table):
            raise _not_the_same(table.name)


def _not_the_same(what: str) -> AccessError:
    return AccessError(f"{what}: not the same in both: see what kvweave verify says of the source, and run again")
