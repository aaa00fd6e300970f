"""A text that is not what its chunk's id says is served nowhere, and comes back with its document."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import chunk_id
from retriever.filter_condition import EVERYTHING
from retriever.search import Query
from tests.retriever.catalogs import deleted, document, put, texts
from tests.retriever.fakes import WordEmbedder
from tests.retriever.libraries import Made

SOUND, RIGHT, WRONG = "a lamp stands here all day", "quaxilor keeps a badger at home", "quaxilor keeps a beaver at home"
EMBEDDER = WordEmbedder("e")


@pytest.fixture(params=["another text", "no text", "another id"])
def damaged(request: pytest.FixtureRequest, catalog: SqliteCatalog, make: Made, tmp_path: Path) -> SqliteCatalog:
    """A catalog with a chunk that is sound and one that is damaged, in one document."""
    make(EMBEDDER).put([document("a", SOUND, RIGHT)], collection="c")
    what = {
        "another text": f"text = '{WRONG}'",
        "no text": "text = CAST(x'71756178696c6f72ff' AS TEXT)",
        "another id": f"id = '{chunk_id(WRONG)}'",
    }
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as connection, connection:
        connection.execute(f"UPDATE chunks SET {what[request.param]} WHERE id = ?", (chunk_id(RIGHT),))
    return catalog


def test_it_is_served_nowhere(damaged: SqliteCatalog, make: Made) -> None:
    library = make(EMBEDDER)
    for mode in ("lexical", "vector", "hybrid"):
        assert {hit.passage.text for hit in library.search(Query("quaxilor keeps lamp", 10, mode))} <= {SOUND}
    assert {each.passage.text for each in library.recognise(f"{SOUND}\n{WRONG}\n{RIGHT}")} == {SOUND}
    with damaged.view() as view:
        rows = list(view.rows_of([chunk_id(SOUND), chunk_id(RIGHT), chunk_id(WRONG)]).values())
        assert [each.text for each in view.holding(rows, EVERYTHING)] == [SOUND]
        assert list(view.texts(rows).values()) == [SOUND]
    assert texts(damaged, "a") == [SOUND]


def test_it_is_embedded_by_no_new_embedder(damaged: SqliteCatalog, make: Made) -> None:
    library = make(WordEmbedder("other"))
    assert library.advance(100) == 1
    assert library.advance(100) == 0
    with damaged.view() as view:
        assert [each.name for each in view.embedders()] == ["other"]


def test_the_same_document_put_again_mends_it(damaged: SqliteCatalog) -> None:
    put(damaged, document("a", SOUND, RIGHT))
    assert texts(damaged, "a") == [SOUND, RIGHT]


def test_its_words_leave_the_index_with_its_document(damaged: SqliteCatalog, make: Made, tmp_path: Path) -> None:
    put(damaged, document("b", "another lamp"))
    deleted(damaged, "a")
    make().maintain()
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as connection:
        connection.execute("CREATE VIRTUAL TABLE temp.seen USING fts5vocab('main', 'terms', 'row')")
        words = {word for (word,) in connection.execute("SELECT term FROM temp.seen")}
    assert "badger" not in words and len(words) == 2
    assert [hit.passage.document for hit in make().search(Query("lamp"))] == ["b"]
