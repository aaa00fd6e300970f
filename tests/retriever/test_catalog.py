"""What every catalog promises of documents; `test_catalog_model.py` has them in any order."""

import pytest

from retriever import filter_condition
from retriever.catalog import versions
from retriever.catalog.catalog import Catalog
from retriever.documents import Document, DocumentPart, chunk_id
from retriever.errors import DocumentError
from retriever.filter_condition import EVERYTHING, facets
from retriever.types import Passage, Removal
from tests.retriever.catalogs import Contract, Opened, Sqlite, deleted, document, entry, ids, names, put, served, staged


class CatalogContract(Contract):
    def test_what_was_put_is_read_back(self, catalog: Catalog) -> None:
        parts = (
            DocumentPart("one", "first", 3, 7, {"lang": "en", "own": [1]}),
            DocumentPart("two\0\r\n\u2028🙂 "),
            DocumentPart(""),
        )
        put(catalog, Document("a/ä 🙂", parts, "Title", {"lang": "de", "deep": {"x": [None, True, 1.5]}}))
        with catalog.view() as view:
            found = view.document("a/ä 🙂")
            first, second, third = view.passages("a/ä 🙂")
        assert found is not None
        assert (found.title, found.collection, found.parts, found.created) == ("Title", "c", 3, found.updated)
        assert found.metadata == {"lang": "de", "deep": {"x": [None, True, 1.5]}}
        assert first == Passage(
            row=first.row, chunk=first.chunk, id=chunk_id("one"), text="one", document="a/ä 🙂", collection="c",
            title="Title", place=0, name="first", start=3, page=7,
            metadata={**found.metadata, "lang": "en", "own": [1]},
        )  # fmt: skip
        assert (second.text, second.name, second.start, second.page) == ("two\0\r\n\u2028🙂 ", "", None, None)
        assert second.metadata == found.metadata and third.text == ""

    def test_what_is_not_there_is_absent(self, catalog: Catalog) -> None:
        with catalog.view() as view:
            assert view.document("a") is None and view.collection("c") is None and view.prefix("c", model="m") is None
            assert view.documents(EVERYTHING) == [] and view.count(EVERYTHING) == 0
            assert view.passages("a") == [] and view.holding([1, 2], EVERYTHING) == [] and view.rows_of(["x"]) == {}
            assert view.lexical("word", EVERYTHING, limit=5) == [] and view.chunks_of(EVERYTHING).tolist() == []
            assert view.marked_after(0).rows.tolist() == [] and view.removed_after(0).tolist() == []
            assert len(view.embedded_after(0, embedder="e", limit=5).rows) == 0 and view.embedders() == []
            assert view.vectors(["x"], embedder="e") == {}

    @pytest.mark.parametrize(
        "bad",
        [
            document("", "x"),
            document("n" * 1101, "x"),
            document("nul\0", "x"),
            document("half \ud800", "x"),
            document("a", "half \ud800"),
            document("a", "x", title="half \udfff"),
            document("a", DocumentPart("x", "half \ud800")),
            document("a", "x", metadata={"m": "half \ud800"}),
            document("a", "x", metadata={"half \ud800": 1}),
            document("a", "x", metadata={"m": float("nan")}),
            document("a", DocumentPart("x", metadata={"m": float("-inf")})),
            document("a", "x", metadata={"m": {1, 2}}),
            document("a", "x", metadata={"m": b"bytes"}),
        ],
    )
    def test_what_cannot_be_kept_is_refused_and_undoes_the_change(self, catalog: Catalog, bad: Document) -> None:
        with pytest.raises(DocumentError), catalog.change() as change:
            change.put([document("good", "y"), bad], collection="c")
        with pytest.raises(DocumentError), catalog.change() as change:
            change.stage(bad, collection="c")
        assert names(catalog, {}) == []

    def test_names_are_texts_and_never_patterns(self, catalog: Catalog) -> None:
        odd = [
            "%",
            "_",
            "a'b",
            'a"b',
            "'; DROP TABLE documents; --",
            "[1]",
            '["x"]',
            "\\",
            " a",
            "a ",
            "A",
            "a",
            "ä",
            "💥",
        ]
        put(catalog, *(document(name, f"text of {name}") for name in odd))
        for name in odd:
            assert deleted(catalog, name).gone == ids(f"text of {name}")
            assert entry(catalog, name) is None
        assert names(catalog, {}) == []

    def test_a_name_with_nul_names_nothing(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"))
        assert deleted(catalog, "a\0b", "\0", "half \ud800") == Removal()
        with catalog.view() as view:
            assert view.document("a") and view.rows_of([f"{chunk_id('x')}\0", "half \ud800"]) == {}

    def test_a_version_that_is_gone_cannot_serve(self, catalog: Catalog) -> None:
        version, dropped, older = (staged(catalog, document(name, "x")) for name in ("a", "b", "c"))
        served(catalog, older)
        put(catalog, document("c", "y"))
        deleted(catalog, "a")
        with catalog.change() as change:
            assert change.drop(dropped) == Removal(gone=ids("x"))
        for gone in (version, dropped, older, 999):
            with pytest.raises(DocumentError, match="put it again"):
                served(catalog, gone)

    def test_only_what_never_served_is_dropped_and_what_takes_its_place_is_as_old(self, catalog: Catalog) -> None:
        version = staged(catalog, document("a", "x"))
        served(catalog, version)
        with catalog.change() as change:
            assert change.drop(version) == change.drop(999) == Removal()
        first = entry(catalog, "a")
        put(catalog, document("a", "y"))
        second = entry(catalog, "a")
        assert first and second and first.created == second.created

    def test_a_bad_patch_changes_nothing(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x", metadata={"m": 1}))
        with pytest.raises(DocumentError), catalog.change() as change:
            change.patch("a", metadata={"n": float("nan")})
        assert names(catalog, {"m": 1}) == ["a"]

    def test_a_patch_is_undone_by_a_put_of_what_was_there_before(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x", metadata={"m": 1}))
        with catalog.change() as change:
            change.patch("a", metadata={"m": 2})
        put(catalog, document("a", "x", metadata={"m": 1}))
        assert names(catalog, {"m": 1}) == ["a"] and names(catalog, {"m": 2}) == []

    def test_objects_are_there_in_a_catalog_of_before_too(
        self, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = {"object": {"name": "hr"}, "within": [{}], "text": "hr"}
        documents = [document(name, name, metadata={"team": team}) for name, team in told.items()]
        with monkeypatch.context() as patch:
            patch.setattr(filter_condition, "VERSION", 1)
            patch.setattr(versions, "facets", lambda told: (each for each in facets(told) if each[1] != b"{}"))
            put(opened(), *documents, document("none", "x"))
        catalog = opened()
        assert names(catalog, {"team": {"$exists": True}}) == sorted(told)
        assert names(catalog, {"team": {"$exists": False}}) == ["none"]
        assert names(catalog, {"team": {"$ne": "hr"}}) == ["none", "object", "within"]
        with catalog.view() as view:
            assert all(view.serves(each, collection="c") for each in documents)


class TestSqliteCatalog(Sqlite, CatalogContract):
    pass
