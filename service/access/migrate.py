"""Moves keys and catalogs from one place to another, and compares all that came. Knows no database.

The source stays as it is. The target has all of it in one moment, or nothing: what a migration that was cut off has
gathered there, nobody serves, and the next one removes it.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from retriever.catalog.table_copy import copy_table, copy_tables, is_same_table, tables_of, unlike
from service.access.receiver import Receiver
from service.access.schema import STEPS
from service.access.truth import Truth
from service.errors import AccessError


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What was moved, and compared. `rows`: of all tables, but for those that are made of others."""

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
        receiver = stack.enter_context(target.receive())
        documents = rows = 0
        for tenant in tenants:
            show(f"tenant {tenant}")
            found = _catalog(source, receiver, tenant=tenant)
            documents, rows = documents + found[0], rows + found[1]
        _points(source, target)
        show("keys")
        with source.rows() as given, receiver.control() as taken:
            counts = [copy_table(given, taken, table=table) for table in tables_of(STEPS)]
            for table in tables_of(STEPS):
                if not is_same_table(given, taken, table=table):
                    raise _unlike(table.name)
            if not (tenants or sum(counts)):
                raise AccessError("the source holds neither keys nor catalogs: is KVWEAVE_DATA right?")
            if lost:
                raise AccessError(lost[0])
    return MigrationReport(tenants, documents, rows + sum(counts))


def _catalog(source: Truth, receiver: Receiver, *, tenant: str) -> tuple[int, int]:
    """Moves a catalog; returns how many documents and rows. What came is compared when it is committed."""
    with source.tables(tenant) as given:
        with receiver.catalog(tenant) as taken:
            rows = copy_tables(given, taken)
        with receiver.catalog(tenant) as taken:
            what = unlike(given, taken)
        if what is not None:
            raise _unlike(f"{what} of tenant {tenant!r}")
        [documents] = given.execute("SELECT count(*) FROM documents WHERE serving = 1").fetchone()
    return documents, rows


def _points(source: Truth, target: Truth) -> None:
    """Moves the operating points. They are measurements: one that the target has is replaced."""
    with TemporaryDirectory() as given, TemporaryDirectory() as taken:
        source.bring_points(Path(given))
        for file in sorted(Path(given).iterdir()):
            target.keep_point(file)
        target.bring_points(Path(taken))
        for file in Path(given).iterdir():
            if (Path(taken) / file.name).read_bytes() != file.read_bytes():
                raise _unlike(f"the operating point {file.name}")


def _unlike(what: str) -> AccessError:
    return AccessError(f"{what}: not the same in both: see what kvweave verify says of the source, and run again")
