"""The tables of uploads in a catalog's file: how an older file gets them, what they leave, what reading costs."""

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from retriever.catalog import schema
from retriever.catalog.catalog import Catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart, chunk_id
from retriever.filter_condition import EVERYTHING
from retriever.upload_types import NewUpload, QueuedUpload, UploadState
from tests.retriever.catalogs import document, ids, observed, put
from tests.retriever.test_schema import at_version, filled, version


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A catalog of version 1, with documents in it, and a chunk that was removed."""
    path = tmp_path / "catalog"
    contexts = schema.STEPS[7]
    with at_version(1):
        filled(path)
        run(path, contexts)  # today's edits write into these tables
        with closing(SqliteCatalog(path)) as catalog:
            put(catalog, Document("00000", (DocumentPart("another text of the catalog"),), "Title", {"n": 0}))
        run(path, "".join(f"DROP TABLE {name};" for name in re.findall(r"CREATE TABLE (\w+)", contexts)))
    assert version(path) == 1
    return path


def run(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All that an older catalog holds."""
    with closing(sqlite3.connect(path)) as connection:
        names = ("collections", "documents", "labels", "facets", "chunks", "passages", "vectors", "removed")
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}


def shape(path: Path) -> set[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return set(connection.execute("SELECT type, name, sql FROM sqlite_schema"))


def test_a_catalog_of_version_1_is_brought_forward_and_takes_uploads(older: Path, tmp_path: Path) -> None:
    before = tables(older)
    with closing(SqliteCatalog(older)) as catalog:
        assert version(older) == schema.VERSION and tables(older) == before
        with catalog.view() as view:
            assert [chunk for _, chunk in view.unswept(9)] == list(ids("text 0 of the catalog"))
            assert view.counts().documents == 3 and view.counts().chunks == 4
            assert [each.passage.document for each in view.lexical("another", EVERYTHING, limit=9)] == ["00000"]
        with catalog.change() as change:
            [upload] = change.accept("j", [NewUpload("00001", "c", "", b"content")])
            number = change.stage(document("00001", "new text"), collection="c")
            change.serve(number)
            assert change.advance(replace(upload, state=UploadState.READY, version=number))
        seen = observed(catalog)
    with closing(SqliteCatalog(older)) as catalog, catalog.view() as view:
        counting = view.upload_of("00001")
        assert counting and counting.state is UploadState.READY
        assert [each.text for each in view.passages("00001")] == ["new text"]
    with closing(SqliteCatalog(older)) as catalog:
        assert observed(catalog) == seen
    filled(tmp_path / "fresh")
    assert shape(older) == shape(tmp_path / "fresh")


def test_the_first_step_is_never_changed() -> None:
    assert chunk_id(schema.STEPS[0]) == "78db2ff01bd41161671b7596090e68b8"


@pytest.mark.parametrize("end", ["ready", "cancelled", "deleted"])
def test_a_content_that_was_let_go_is_overwritten_in_the_file(tmp_path: Path, end: str) -> None:
    path = tmp_path / "catalog"
    with closing(SqliteCatalog(path)) as catalog:
        with catalog.change() as change:
            others = [NewUpload(f"other {number}", "c", "", b"other content") for number in range(9)]
            upload, *_ = change.accept("j", [NewUpload("idneedle", "c", "fileneedl", b"needle " * 5000)])
            change.accept("k", others)
        with catalog.change() as change:
            if end == "ready":
                change.advance(replace(upload, state=UploadState.READY, detail="detailneedl"))
            elif end == "cancelled":
                change.cancel("j")
            else:
                change.delete(["idneedle"])
        _checkpoint(path)
        data = path.read_bytes()
        assert b"other content" in data and b"needle needle" not in data
        with catalog.change() as change:
            assert change.forget_uploads(upload.created + 1e6) == 1
    data = path.read_bytes()
    assert b"needle" not in data and b"needl" not in data


class Counting(SqliteCatalog):
    """Counts the steps of SQLite's machine, by hundreds."""

    steps = 0

    def _open(self) -> sqlite3.Connection:
        connection = super()._open()
        connection.set_progress_handler(self._count, 100)
        return connection

    def _count(self) -> int:
        self.steps += 100
        return 0


def test_reading_what_waits_costs_no_more_behind_a_long_history(tmp_path: Path) -> None:
    with closing(Counting(tmp_path / "catalog")) as catalog:
        short = cost(catalog, "short")
        with closing(sqlite3.connect(tmp_path / "catalog")) as connection, connection:
            columns = "job, origin, document, collection, name, state, created, updated"
            numbers = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
            connection.execute(
                f"{numbers} INSERT INTO uploads ({columns}) SELECT 9 + i / 50, 0, 'a', 'c', '', 'ready', 1, 1 FROM n"
            )
            connection.execute(f"{numbers} INSERT INTO jobs (row, id, created) SELECT 9 + i, 'h' || i, 1 FROM n")
        assert cost(catalog, "long") < short + 1000


def cost(catalog: Counting, job: str) -> int:
    before = catalog.steps
    with catalog.change() as change:
        [upload, other] = change.accept(job, [NewUpload("a", "c", "", b"x"), NewUpload("", "d", "f", b"y")])
        change.expand(other.number, [NewUpload("b", "d", "", b"x")])
        change.advance(replace(upload, state=UploadState.COMPUTING))
    _read(catalog, upload)
    with catalog.change() as change:
        change.cancel(job)
        change.delete(["a"])
        change.delete_collection("c")
    return catalog.steps - before


def _read(catalog: Catalog, upload: QueuedUpload) -> None:
    with catalog.view() as view:
        assert len(view.live(9)) == 2 and len(view.uploads(upload.job, limit=2)) == 2
        assert view.upload_of("a") and view.job(upload.job) and view.jobs(limit=1)
        assert view.content(upload.number) == b"x"


def _checkpoint(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
