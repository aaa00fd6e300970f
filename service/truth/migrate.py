"""Moves keys and catalogs from one place to another, by way of files in the form of a backup. Knows no database.

The source stays as it is. The target has all of it in one moment, or nothing: what a migration that was cut off has
gathered there, nobody serves, and the next one removes it.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from retriever.catalog import schema as catalog_schema
from retriever.catalog.sqlite_connection import beside
from retriever.catalog.table_copy import count_rows
from service.errors import AccessError
from service.truth import control_file
from service.truth.databases import CATALOG, CONTROL, TENANTS
from service.truth.truth import Truth


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What was moved. `rows`: of all tables, but for those that are made of others."""

    tenants: tuple[str, ...]
    documents: int
    rows: int


def migrate(source: Truth, target: Truth, *, show: Callable[[str], None] = lambda doing: None) -> MigrationReport:
    """Moves all that is in the source into the target. Raises AccessError where one is served, or it cannot be done.

    `show` is told what is done just now.
    """
    lost: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(source.hold(lost.append))
        stack.enter_context(target.hold(lost.append))
        tenants = tuple(source.tenants())
        for tenant in tenants:
            stack.enter_context(source.precompute(tenant, shared=False))
        folder = stack.enter_context(target.receive())
        documents = rows = 0
        for tenant in tenants:
            show(f"tenant {tenant}")
            file = folder / TENANTS / tenant / CATALOG
            source.copy_catalog(tenant, file)
            with beside(file) as connection:
                rows += count_rows(connection, catalog_schema.STEPS)
                documents += connection.execute("SELECT count(*) FROM documents WHERE serving = 1").fetchone()[0]
        _points(source, target)
        show("keys")
        source.copy_control(folder / CONTROL)
        with beside(folder / CONTROL) as connection:
            rows += count_rows(connection, control_file.STEPS)
        if not rows:
            raise AccessError("the source holds neither keys nor catalogs: is KVWEAVE_DATA right?")
        if lost:
            raise AccessError(lost[0])
        show("all of it into its place")
    return MigrationReport(tenants, documents, rows)


def _points(source: Truth, target: Truth) -> None:
    """Moves the operating points. They are measurements: one that the target has is replaced."""
    with TemporaryDirectory() as given, TemporaryDirectory() as taken:
        source.bring_points(Path(given))
        for file in sorted(Path(given).iterdir()):
            target.keep_point(file)
        target.bring_points(Path(taken))
        for file in Path(given).iterdir():
            if (Path(taken) / file.name).read_bytes() != file.read_bytes():
                raise AccessError(f"the operating point {file.name} is not the same in both: run again")
