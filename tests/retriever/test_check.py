"""A check of a catalog names the documents that are not what was put in, and mends what follows from the others."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retriever.catalog.check import CatalogReport, check_catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.errors import CatalogError
from retriever.library import Library
from retriever.search import Query
from tests.retriever.catalogs import document, ids, names, put


@pytest.fixture
def path(catalog: SqliteCatalog, tmp_path: Path) -> Path:
    put(catalog, document("a", "quaxilor keeps a badger", "a lamp", title="t", metadata={"team": "law", "n": [1, 2.5]}))
    put(catalog, document("b", "another lamp", metadata={"team": "hr"}))
    with catalog.change() as change:
        change.patch("b", metadata={"by": "me"})
    return tmp_path / "catalog.sqlite"


def run(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_a_sound_catalog_is_left_as_it_is(path: Path) -> None:
    assert check_catalog(path) == CatalogReport(2, (), 0)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE chunks SET text = 'quaxilor keeps a beaver' WHERE text LIKE '%badger%'",
        "UPDATE documents SET title = 'u' WHERE id = 'a'",
        "UPDATE passages SET place = 7 - place WHERE document = 1",
        "UPDATE passages SET chunk = 77 WHERE document = 1",
        "UPDATE labels SET collection = 'd' WHERE row = 1",
        "DELETE FROM labels WHERE row = 1",
    ],
)
def test_what_was_not_put_in_is_named(path: Path, damage: str) -> None:
    run(path, damage)
    assert check_catalog(path).damaged == ("a",)


def test_texts_wait_for_a_document_that_is_damaged(path: Path, catalog: SqliteCatalog) -> None:
    """What no version holds any more goes when all of them are right again."""
    run(path, "DELETE FROM documents WHERE id = 'a'")
    assert check_catalog(path).damaged == ("number 1",)
    with catalog.view() as view:
        assert view.rows_of(ids("a lamp")) and not view.removed_after(0).size
    report = check_catalog(path)
    assert report.damaged == () and report.mended > 0
    with catalog.view() as view:
        assert not view.rows_of(ids("a lamp")) and view.removed_after(0).size == 2
    assert check_catalog(path) == CatalogReport(1, (), 0)


def test_filters_are_mended_from_the_metadata(path: Path, catalog: SqliteCatalog) -> None:
    run(path, "UPDATE facets SET value = 'law' WHERE value = 'hr'")
    assert names(catalog, {"team": "law"}) == ["a", "b"]
    assert check_catalog(path) == CatalogReport(2, (), 2)
    assert names(catalog, {"team": "law"}) == ["a"]
    assert check_catalog(path).mended == 0


def test_an_index_that_is_damaged_is_made_anew(path: Path, catalog: SqliteCatalog, tmp_path: Path) -> None:
    run(path, "UPDATE terms_data SET block = x'00000000' WHERE id > 10")
    assert check_catalog(path).mended == 1
    found = Library(catalog, tmp_path).search(Query("badger"))
    assert [hit.passage.document for hit in found] == ["a"]


def test_damaged_pages_are_said(path: Path, catalog: SqliteCatalog) -> None:
    catalog.close()
    with path.open("r+b") as file:
        file.seek(8)
        file.write(bytes(16))
    with pytest.raises(CatalogError, match="restore it from a backup"):
        check_catalog(path)
