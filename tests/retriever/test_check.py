"""A check of a catalog names the documents that are not what was put in, and what else is wrong. It changes nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retriever.catalog.check import CatalogReport, check_catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
from retriever.errors import CatalogError
from tests.retriever.catalogs import document, names, put, texts


@pytest.fixture
def documents() -> dict[str, Document]:
    parts = ("quaxilor keeps a badger", DocumentPart("a lamp", metadata={"page": "x"}))
    found = [
        document("a", *parts, title="t", metadata={"team": "law", "n": [1, 2.5]}),
        document("b", "another lamp", metadata={"team": "hr"}),
    ]
    return {each.id: each for each in found}


@pytest.fixture
def path(catalog: SqliteCatalog, documents: dict[str, Document], tmp_path: Path) -> Path:
    put(catalog, *documents.values())
    with catalog.change() as change:
        change.patch("b", metadata={"by": "me"})
    return tmp_path / "catalog.sqlite"


def run(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_a_sound_catalog_is_left_as_it_is(path: Path) -> None:
    assert check_catalog(path) == CatalogReport(2)


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


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE facets SET value = 'law' WHERE value = 'hr'",
        "DELETE FROM facets WHERE label = 1",
        "INSERT INTO facets VALUES ('team', 'green', 1)",
        "UPDATE passages SET label = 2 WHERE document = 1",
        "UPDATE chunks SET head = NULL WHERE row = 1",
        "UPDATE documents SET parts = parts + 1",
        "UPDATE chunks SET text = 'another'",
    ],
)
def test_what_is_named_is_right_once_it_is_put_in_again(
    path: Path, catalog: SqliteCatalog, documents: dict[str, Document], damage: str
) -> None:
    put(catalog, documents["b"])
    run(path, damage)
    report = check_catalog(path)
    assert report.damaged
    put(catalog, *(documents[name] for name in report.damaged))
    assert check_catalog(path) == CatalogReport(2)
    assert names(catalog, {"team": "law"}) == ["a"] and names(catalog, {"team": "hr"}) == ["b"]


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        ("UPDATE chunks SET uses = 9 WHERE row = 1", "uses of chunks"),
        ("UPDATE facts SET value = 9 WHERE name = 'passages'", "counts of passages"),
        ("UPDATE facts SET value = 9 WHERE name = 'words'", "words of the index"),
        ("UPDATE passages SET words = 99 WHERE row = 1", "words of the index"),
        ("UPDATE terms_data SET block = x'00000000' WHERE id > 10", "words of the index"),
        ("INSERT INTO labels VALUES (777, 'c', '{}')", "labels"),
        ("INSERT INTO facets VALUES ('team', 'law', 777)", "filters"),
        ("INSERT INTO vectors (embedder, chunk, vector) VALUES (1, 1, x'00')", "vectors"),
    ],
)
def test_what_is_of_no_document_alone_is_said(path: Path, damage: str, wrong: str) -> None:
    run(path, damage)
    report = check_catalog(path)
    assert report == CatalogReport(2, (), (wrong,)) == check_catalog(path)


def test_a_document_that_is_gone_is_told_by_its_number(path: Path) -> None:
    run(path, "DELETE FROM documents WHERE id = 'a'")
    report = check_catalog(path)
    assert report.damaged == ("number 1",) and "passages of no document" in report.wrong


def test_damaged_pages_are_said(path: Path, catalog: SqliteCatalog) -> None:
    catalog.close()
    with path.open("r+b") as file:
        file.seek(8)
        file.write(bytes(16))
    with pytest.raises(CatalogError, match="restore it from a backup"):
        check_catalog(path)


def test_a_file_in_the_place_of_another_is_said_and_not_mixed_with_it(tmp_path: Path) -> None:
    """Open connections go on with the one that was there, new ones would read the other."""
    other = SqliteCatalog(tmp_path / "other.sqlite")
    put(other, document("b", "river"))
    other.close()
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite")
    put(catalog, document("a", "cedar"))
    (tmp_path / "other.sqlite").replace(tmp_path / "catalog.sqlite")
    with pytest.raises(CatalogError, match="start the service again"):
        texts(catalog, "a")
    catalog.close()
